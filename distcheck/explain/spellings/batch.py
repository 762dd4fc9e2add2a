"""What batch systems and clouds say when they refuse a job: PBS, Grid Engine, LSF, Flux, SageMaker, SkyPilot."""

from __future__ import annotations

from functools import partial

from distcheck.explain.spelling import CONSEQUENCE, LIKELY, told

_PBS = "https://github.com/openpbs/openpbs/blob/master/src/lib/Libifl/pbs_errors.c"
_SGE = "https://gridscheduler.sourceforge.net/htmlman/htmlman1/qsub.html"
_LSF = "https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=reference-bsub"
_SAGEMAKER = "https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_CreateTrainingJob.html"
_SKY = "https://docs.skypilot.co/en/latest/reference/faq.html"
_start = partial(told, about="start-up")
_REFUSED = "The scheduler refused the job: change the request, or choose a queue that can serve it."
_NO_CAPACITY = "The cloud has no such machines free or allowed: change the type, the region or the quota."

SPELLINGS = (
    *(
        _start(pattern, source=source, weight=LIKELY, says=_REFUSED)
        for pattern, source in (
            (r"qsub: .*(?:rejected|denied|illegal|invalid|cannot|unauthorized|unknown|exceed|violates|not )", _PBS),
            (r"qsub: (?:Job|Unknown|Bad|submit)", _PBS),
            (r"Job rejected by all possible", _PBS),
            (r"Job (?:exceeds|violates) queue", _PBS),
            (r"Unable to run job: ", _SGE),
            (r"Job was rejected because", _SGE),
            (r"\bRequest aborted by esub", _LSF),
            (r"\bJob not submitted", _LSF),
            (r"jsrun: (?:Error|error)", _LSF),
            (r"Error: It is only possible to use js commands within a job", _LSF),
            (r"Could not read jskill result from pmix server", _LSF),
            (r"Error initializing RM connection", _LSF),
            (r"flux-job: .*(?:invalid|rejected|unsatisfiable)", "https://flux-framework.org/"),
        )
    ),
    *(
        _start(pattern, source=source, weight=LIKELY, says=_NO_CAPACITY)
        for pattern, source in (
            (r"ResourceLimitExceeded", _SAGEMAKER),
            (r"CapacityError: Unable to provision", _SAGEMAKER),
            (r"InsufficientInstanceCapacity", _SAGEMAKER),
            (r"ResourcesUnavailableError", _SKY),
            (r"Failed to acquire resources in all", _SKY),
            (r"ZONE_RESOURCE_POOL_EXHAUSTED", "https://cloud.google.com/compute/docs/troubleshooting"),
            (
                r"does not have enough resources available to fulfill",
                "https://cloud.google.com/compute/docs/troubleshooting",
            ),
            (
                r"(?:Quota|QUOTA)\W{0,3}'?\S*(?:GPU|CPU|NVIDIA)\S*'? exceeded",
                "https://cloud.google.com/compute/docs/troubleshooting",
            ),
            (r"VcpuLimitExceeded", "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"),
        )
    ),
    _start(
        r"UnexpectedStatusException",
        source=_SAGEMAKER,
        about="application",
        weight=CONSEQUENCE,
        says="SageMaker reports that the training job failed. The cause is in the job's own log.",
    ),
)
