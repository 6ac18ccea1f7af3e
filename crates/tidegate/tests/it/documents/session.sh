# What a reader of a page does, as functions of one shell. The test appends their calls.
# A record separator ends what each command has said, with the command's status behind it.

put() {
    mkdir -p "$(dirname "$1")" && printf '%s' "$2" >"$1"
}

# Runs a command to its end.
run() {
    eval "$1" </dev/null
    printf '\036%s\n' "$?"
}

# Starts a command that goes on, and shows what it says up to a line of this pattern.
serve() {
    local held said line
    mkfifo .said
    exec {held}<>.said
    eval "$1" >.said 2>&1 </dev/null
    exec {said}<.said {held}>&-
    while IFS= read -r -u "$said" line; do
        printf '%s\n' "$line"
        # shellcheck disable=SC2053
        [[ $line == $2 ]] && break
    done
    # What it says later goes to a terminal at which nobody looks. This is no job of the page's.
    (cat <&"$said" >/dev/null &)
    exec {said}<&-
    rm .said
    printf '\0360\n'
}

ip link set lo up || exit
exec 2>&1
