# Runs in a root of Debian, as its root, with a network of its own: what an operator would type, from
# installing the package to purging it. A line of this script that fails ends it.
set -eu
export DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
unset TIDEGATE_CONFIG TIDEGATE_SERVER TIDEGATE_ADMIN RUST_LOG || true
apt="apt-get --quiet --yes --option APT::Sandbox::User=root"

$apt install /tidegate.deb
getent passwd tidegate
tidegate config check /etc/tidegate/tidegate.toml
for page in tidegate tidegate-serve tidegate-config-check; do
    zcat /usr/share/man/man1/$page.1.gz | grep 'EXIT STATUS'
done
for file in bash-completion/completions/tidegate zsh/vendor-completions/_tidegate \
    fish/vendor_completions.d/tidegate.fish doc/tidegate/copyright; do
    test -s /usr/share/$file
done
test -L /etc/systemd/system/multi-user.target.wants/tidegate.service
echo "enabled"

mkfifo /told
exec 3<>/told
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
kill $server
wait $server
test -s /var/lib/tidegate/tidegate.snapshot

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
