#!/usr/bin/env bash
# Run several experiments at once, in slots of time such as those of a cluster:
#
#     examples/in_slots.sh 540 <<'END'
#     zinc --workers 3
#     CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 multitask --recipe plain; mnist
#     END
#
# A line is a lane of `pna reproduce`: lanes run side by side, the commands of a lane one after
# another. A command may begin with variables, as NAME=VALUE. Quotes are not understood. After 540
# seconds all of them save a checkpoint and stop. The same call then continues.
# Messages are in runs/lane-1.log and so on. The exit status is 0 if everything is finished, 75 if
# the time was up, and 1 if a command failed: the other commands of its lane still run.
set -mu  # -m: a process in the background receives the interrupt

seconds=${1:?expected a number of seconds, such as 540}
grace=60  # seconds to save a checkpoint
unfinished=75
mkdir -p runs

lane() {  # commands, separated by semicolons
  local status=0 commands command words given left code
  IFS=';' read -ra commands <<<"$1"
  for command in "${commands[@]}"; do
    left=$((seconds - SECONDS))
    ((left > 0)) || return $unfinished
    read -ra words <<<"$command"
    given=()
    while [[ ${words[0]-} =~ ^[A-Za-z_][A-Za-z_0-9]*= ]]; do
      given+=("${words[0]}")
      words=("${words[@]:1}")
    done
    ((${#words[@]})) || continue
    echo "pna reproduce ${words[*]}"
    # --foreground: a process whose group is interrupted too gets two signals
    env ${given[@]+"${given[@]}"} timeout --foreground --signal INT --kill-after "$grace" "$left" \
      ${PNA:-pna} reproduce "${words[@]}" --resume
    code=$?
    case $code in
      0) ;;
      124 | 130 | 137) return $unfinished ;;
      *) status=1 && echo "failed with exit status $code" ;;
    esac
  done
  return $status
}

lanes=()
while IFS= read -r line; do
  [[ -z "${line// /}" ]] && continue
  lane "$line" >"runs/lane-$((${#lanes[@]} + 1)).log" 2>&1 </dev/null &
  lanes+=($!)
done

worst=0
for pid in "${lanes[@]}"; do
  wait "$pid"
  code=$?
  ((worst == 1)) || { ((code)) && worst=$code; }
done
exit "$worst"
