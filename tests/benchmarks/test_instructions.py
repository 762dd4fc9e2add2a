import pytest
from benchmarks import instructions


def loop(times):
    for _ in range(times):
        pass
    return times


def test_ten_times_the_work_takes_ten_times_the_instructions():
    try:
        (few, _), (many, result) = (instructions.counted(lambda times=times: loop(times)) for times in (10**5, 10**6))
    except OSError as error:
        assert "counted" in str(error)  # many a virtual machine may not
    else:
        assert result == 10**6
        assert many / few == pytest.approx(10, rel=0.2)


def test_a_machine_that_does_not_count_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(instructions.platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="not counted on riscv64"):
        instructions.counted(lambda: None)
