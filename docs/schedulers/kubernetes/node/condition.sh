#!/bin/sh
# A custom plugin of node-problem-detector, and the readiness probe: 0 healthy, 1 unhealthy, 2 unknown; a line says why.
result=/run/distcheck
read -r code time interval 2>/dev/null <"$result/code" || { echo "distcheck node has not run yet"; exit 2; }
age=$(($(date +%s) - time))
[ "$age" -le $((3 * interval + 60)) ] || { echo "the last result of distcheck node is $age s old"; exit 2; }
case $code in
    0 | 10) echo "distcheck node passed"; exit 0 ;;
    30 | 40) bad=1 ;;
    *) bad=2 ;;
esac
[ -s "$result/reason" ] && cat "$result/reason" || echo "distcheck node ended with exit code $code"
exit $bad
