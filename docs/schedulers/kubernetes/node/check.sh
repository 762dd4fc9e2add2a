#!/bin/sh
# Runs `distcheck node` every INTERVAL seconds; its policy is in /etc/distcheck, options are in DISTCHECK_….
# condition.sh reads the result: exit code, time and interval in one file, the reason in another.
result=/run/distcheck textfile=/textfile
trap 'exit 0' TERM INT
while :; do
    rm -f "$result/job.json"
    distcheck node --quiet --format prometheus --output "$textfile/distcheck.prom" --reason-file "$result/reason" \
        --save "$result/job.json"
    echo "$? $(date +%s) ${INTERVAL:-300}" >"$result/code.new" && mv "$result/code.new" "$result/code"
    distcheck report "$result/job.json" | sed -n 1p    # for the pod's log, also what is only observed
    sleep "${INTERVAL:-300}" & wait $!
done
