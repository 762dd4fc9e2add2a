#!/bin/sh
# Slurm Prolog and Epilog: no job starts, and none is left, on a node that is confirmed bad.
#   slurm.conf: Prolog=/etc/slurm/prolog.sh  Epilog=/etc/slurm/prolog.sh  PrologFlags=Alloc
#
# slurmd runs it as root, without PATH, before and after each job on the node. It must be short and must not call
# Slurm's commands, so it writes its reason to a file and the system log; health_check.sh gives Slurm one.
PATH=/usr/sbin:/usr/bin:/sbin:/bin:/opt/distcheck/bin
export PATH
distcheck=distcheck gpus=
[ ! -r /etc/default/distcheck ] || . /etc/default/distcheck   # distcheck=/path/to/distcheck gpus=8
when=${SLURM_SCRIPT_CONTEXT:-prolog_slurmd} run=/run/distcheck
when=${when%_slurmd}                                          # prolog or epilog
cd / && mkdir -p "$run" || exit 0

# A job leaves the check out with `sbatch --comment=nodistcheck`; among other words, commas or spaces separate them.
case ",$(printf %s "${SLURM_JOB_COMMENT:-}" | tr ' ' ,)," in
    *,nodistcheck,*)
        timeout 2 logger -t distcheck "$when: job ${SLURM_JOB_ID:-} asked for no check" || :
        exit 0 ;;
esac

# distcheck ends within ten seconds; `timeout` is for a Python that does not start.
timeout -s KILL 15 "$distcheck" node ${gpus:+--gpus "$gpus"} --quiet --syslog \
    --reason-file "$run/$when.reason" --save "$run/$when.json" </dev/null >"$run/$when.log" 2>&1
code=$?
case $code in
    40) exit 1 ;;             # confirmed bad: Slurm drains the node ("Prolog error"); a Prolog also requeues the job
    0 | 10 | 20 | 30) ;;      # healthy; suspected (20): the job's own gate checks again; the site is at fault (30)
    *) timeout 2 logger -t distcheck -p daemon.warning "$when: distcheck node itself failed (exit code $code)" || : ;;
esac
exit 0
