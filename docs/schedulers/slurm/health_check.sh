#!/bin/sh
# Slurm HealthCheckProgram: drains a bad node, and resumes it when it is healthy again.
#   slurm.conf: HealthCheckProgram=/etc/slurm/health_check.sh  HealthCheckInterval=300  HealthCheckNodeState=ANY,CYCLE
#
# slurmd runs it as root, without PATH, and kills it after 60 seconds; Slurm ignores its exit code.
# It leaves a node unchanged that others drained: its own have a reason that begins with "distcheck: ".
PATH=/usr/sbin:/usr/bin:/sbin:/bin:/opt/distcheck/bin
export PATH
distcheck=distcheck gpus=
[ ! -r /etc/default/distcheck ] || . /etc/default/distcheck   # distcheck=/path/to/distcheck gpus=8
run=/run/distcheck
node=${SLURMD_NODENAME:-$(hostname -s)}
cd / && mkdir -p "$run" || exit 1
exec 9>"$run/lock"
flock --nonblock 9 || exit 0   # slurmd may start one while the previous one still runs

timeout -s KILL 15 "$distcheck" node ${gpus:+--gpus "$gpus"} --quiet --syslog \
    --reason-file "$run/health.reason" --save "$run/health.json" </dev/null >"$run/health.log" 2>&1 9>&-
code=$?
case $code in
    0 | 10) bad=no ;;
    20 | 30) exit 0 ;;                      # unknown (20), or the site is at fault (30): changes nothing
    40) bad=yes ;;
    *)                                      # distcheck failed: the result is not about the node
        timeout 2 logger -t distcheck -p daemon.warning "health check: distcheck node itself failed (exit code $code)" || :
        exit "$code" ;;
esac

now=$(timeout 10 sinfo --noheader --Node --nodes="$node" --format='%T|%E' | head -n 1)
state=${now%%|*} reason=${now#*|}
update() { timeout 10 scontrol update NodeName="$node" "$@"; }

case $bad:$state:$reason in
    *::*) exit 1 ;;                                                  # the controller does not answer
    no:drain*:distcheck:\ *)                                         # drained by these scripts, healthy again ...
        grep -q 'would have been exit code' "$run/health.log" || update State=RESUME ;;     # ... or only observed
    *:drain*:Prolog\ error | *:drain*:Epilog\ error)                 # if by prolog.sh, which cannot set the reason
        why=$(grep -hs 'exit code 40' "$run/prolog.reason" "$run/epilog.reason" | tail -n 1)
        [ -z "$why" ] || update State=DRAIN Reason="$why" ;;
    yes:drain* | yes:down*) ;;                                       # already out of use
    yes:*) update State=DRAIN Reason="$(cat "$run/health.reason")" ;;
esac
