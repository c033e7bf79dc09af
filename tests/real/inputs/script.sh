# Functions, arrays, arithmetic, files and loops, all built in.
set -e
declare -A seen
words=()
fib() { local n=$1; if ((n < 2)); then echo "$n"; else echo $(( $(fib $((n - 1))) + $(fib $((n - 2))) )); fi; }
collect() {
  while read -r word rest; do
    words+=("$word")
    seen[$word]=$(( ${seen[$word]:-0} + ${#rest} ))
  done
}
collect < /words.txt
for word in "${words[@]}"; do printf '%s=%d ' "$word" "${seen[$word]}"; done; echo
sum=7
for ((i = 0; i < 400; i++)); do
  case $((i % 5)) in
    0) sum=$(( (sum * 31 + i) % 65521 )) ;;
    1|2) sum=$(( sum ^ i )) ;;
    *) [[ $i =~ 3$ ]] && sum=$((sum + 13)) || sum=$((sum + 1)) ;;
  esac
done
echo "fib $(fib 10) checksum $sum ${words[*]:1:2} ${#words[@]}"
trap 'echo leaving' EXIT
