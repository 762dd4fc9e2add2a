import gc

import pytest

from distcheck.run.garbage import hardly_searched


@pytest.fixture
def restored():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # another test may have raised it
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("restored")
def test_a_short_process_hardly_searches_and_its_end_has_nothing_to_search():
    usual, frozen = gc.get_threshold()[0], gc.get_freeze_count()
    with hardly_searched():
        assert gc.get_threshold()[0] >= 100 * usual
        assert gc.get_freeze_count() == frozen
    assert gc.get_freeze_count() > frozen
    assert len(gc.get_objects()) < 100
