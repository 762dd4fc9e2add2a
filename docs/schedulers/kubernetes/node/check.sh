#!/bin/sh
# Runs `distcheck node` every INTERVAL seconds; its options are in the environment (DISTCHECK_GPUS and others).
# condition.sh reads the result: exit code, time and interval in one file, the reason in another.
result=/run/distcheck textfile=/textfile
trap 'exit 0' TERM INT
while :; do
    distcheck node --quiet --format prometheus --output "$textfile/distcheck.prom" --reason-file "$result/reason"
    echo "$? $(date +%s) ${INTERVAL:-300}" >"$result/code.new" && mv "$result/code.new" "$result/code"
    cat "$result/reason"
    sleep "${INTERVAL:-300}" & wait $!
done
