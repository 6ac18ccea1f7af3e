# Runs in a root of Debian, as its root, with a network of its own: what an operator would type, from
# installing the package over an upgrade to purging it. A line of this script that fails ends it.
set -eu
export DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
unset TIDEGATE_CONFIG TIDEGATE_SERVER TIDEGATE_ADMIN RUST_LOG || true
apt="apt-get --quiet --yes --option APT::Sandbox::User=root"

now_ms() { echo $(($(date +%s%N) / 1000000)); }

began=$(now_ms)
$apt install /tidegate.deb
getent passwd tidegate
tidegate config check /etc/tidegate/tidegate.toml
for page in tidegate tidegate-serve tidegate-config-check; do
    for heading in 'EXIT STATUS' FILES EXAMPLES; do
        zcat /usr/share/man/man1/$page.1.gz | grep "$heading"
    done
done
for file in bash-completion/completions/tidegate zsh/vendor-completions/_tidegate \
    fish/vendor_completions.d/tidegate.fish doc/tidegate/copyright; do
    test -s /usr/share/$file
done
test -L /etc/systemd/system/multi-user.target.wants/tidegate.service
echo "enabled"

mkfifo /told
exec 3<>/told
# As the unit does it: from this folder, and by a user who may write nowhere else.
cd /var/lib/tidegate
setpriv --reuid=tidegate --regid=tidegate --clear-groups --no-new-privs --bounding-set=-all \
    tidegate serve --config /etc/tidegate/tidegate.toml 2>&3 &
server=$!
while read -r line <&3; do
    echo "$line"
    test "$line" != ready || break
done
tidegate healthcheck
asked=0
while tidegate check 'login ip=192.0.2.7'; do
    asked=$((asked + 1))
    test $asked -lt 100
done
echo "allowed $asked, then refused"
echo "from apt install to the refusal: $(($(now_ms) - began)) ms"
test "$(stat --format %U /proc/$server)" = tidegate
kill $server
wait $server
test "$(stat --format %U:%a /var/lib/tidegate/tidegate.snapshot)" = tidegate:600
cd /

# An upgrade keeps what the administrator has changed, and the counts; so does the way back.
echo '# changed by the administrator' >> /etc/tidegate/tidegate.toml
kept() { sha256sum /etc/tidegate/tidegate.toml /var/lib/tidegate/tidegate.snapshot; }
version() { dpkg-query --show --showformat '${Version}' tidegate; }
before=$(kept)
first=$(version)
$apt install /newer.deb
test "$(version)" = 99.0.0-1
test "$(kept)" = "$before"
$apt install --allow-downgrades /tidegate.deb
test "$(version)" = "$first"
test "$(kept)" = "$before"
tidegate config check /etc/tidegate/tidegate.toml
echo "upgraded and back"

# Whatever the pages link to came along; those two are for developers, and link to sources.
for page in $(find /usr/share/doc/tidegate -name '*.md' ! -name ARCHITECTURE.md ! -name CONTRIBUTING.md); do
    for link in $(grep -o '](\S*)' $page | sed 's/^](//; s/[)#].*//' | grep -v '^http'); do
        test -e "$(dirname $page)/$link" || { echo "$page: no $link"; exit 1; }
    done
done
echo "links lead somewhere"

$apt remove tidegate
test ! -e /usr/bin/tidegate
test -e /etc/tidegate/tidegate.toml
$apt purge tidegate
for gone in /etc/tidegate /var/lib/tidegate /usr/lib/systemd/system/tidegate.service \
    /etc/systemd/system/multi-user.target.wants/tidegate.service; do
    test ! -e $gone
    test ! -L $gone
done
echo "purged"
