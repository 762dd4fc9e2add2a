#!/bin/sh
# Slurm's Prolog: no job starts on a node that is surely bad.   slurm.conf: Prolog=/etc/slurm/prolog.sh
#
# slurmd runs it as root, without PATH, before the first step of each job on the node. It must be short and must not call
# Slurm's commands, so why it refused stands in the reason file and in the system's log; health_check.sh hands it on.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
distcheck=/opt/distcheck/bin/distcheck gpus=
[ ! -r /etc/default/distcheck ] || . /etc/default/distcheck   # distcheck=/path/to/distcheck gpus=8
run=/run/distcheck
cd / && mkdir -p "$run" || exit 0

# It ends by itself within ten seconds; `timeout` is for a Python that does not even start.
timeout -s KILL 15 "$distcheck" node ${gpus:+--gpus "$gpus"} --quiet --syslog \
    --reason-file "$run/prolog.reason" --save "$run/prolog.json" </dev/null >"$run/prolog.log" 2>&1
code=$?
case $code in
    40) exit 1 ;;        # surely bad: Slurm drains the node ("Prolog error") and requeues the job
    0 | 10 | 20) ;;      # healthy, or not known: what is only suspected stops no job; the job's own gate looks again
    *) logger -t distcheck -p daemon.warning "prolog: distcheck node itself failed (exit code $code)" || : ;;
esac
exit 0
