#!/bin/sh
# Slurm Prolog: no job starts on a node that is confirmed bad.   slurm.conf: Prolog=/etc/slurm/prolog.sh
#
# slurmd runs it as root, without PATH, before the first step of each job on the node. It must be short and must not call
# Slurm's commands, so it writes its reason to a file and the system log; health_check.sh gives Slurm one.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
distcheck=/opt/distcheck/bin/distcheck gpus=
[ ! -r /etc/default/distcheck ] || . /etc/default/distcheck   # distcheck=/path/to/distcheck gpus=8
run=/run/distcheck
cd / && mkdir -p "$run" || exit 0

# A job leaves the check out with `sbatch --comment=nodistcheck`; among other words, commas or spaces separate them.
case ",$(printf %s "${SLURM_JOB_COMMENT:-}" | tr ' ' ,)," in
    *,nodistcheck,*)
        logger -t distcheck "prolog: job ${SLURM_JOB_ID:-} asked for no check" || :
        exit 0 ;;
esac

# distcheck ends within ten seconds; `timeout` is for a Python that does not start.
timeout -s KILL 15 "$distcheck" node ${gpus:+--gpus "$gpus"} --quiet --syslog \
    --reason-file "$run/prolog.reason" --save "$run/prolog.json" </dev/null >"$run/prolog.log" 2>&1
code=$?
case $code in
    40) exit 1 ;;        # confirmed bad: Slurm drains the node ("Prolog error") and requeues the job
    0 | 10 | 20) ;;      # healthy, or suspected (20): the job's own gate checks again; else write 20 | 40) above
    *) logger -t distcheck -p daemon.warning "prolog: distcheck node itself failed (exit code $code)" || : ;;
esac
exit 0
