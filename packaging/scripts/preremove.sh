#!/bin/sh
# dpkg calls it with "remove", "upgrade VERSION" or "deconfigure ...", rpm with the number of versions that stay.
set -e
case ${1:-} in
  remove | 0) ;;
  *) exit 0 ;;
esac

# An engine that names a program which is not there starts no container any more.
key="s/^[[:space:]]*[\"']\{0,1\}state_dir[\"']\{0,1\}[[:space:]]*=[[:space:]]*"
state=$(sed -n -e "$key\"\([^\"]*\)\".*/\1/p" -e "$key'\([^']*\)'.*/\1/p" /etc/gpuledger/config.toml 2>/dev/null | head -n 1)
for record in "${state:-/var/lib/gpuledger}"/configure/*/record.json; do
  [ -e "$record" ] || continue
  engine=$(basename "$(dirname "$record")")
  echo "gpuledger: cannot be removed: $engine runs its containers through it" >&2
  echo "hint: gpuledger configure $engine --undo --restart, and let containers end that were started through it" >&2
  configured=yes
done
[ -z "${configured:-}" ] || exit 1

if [ -d /run/systemd/system ]; then
  systemctl --quiet disable --now gpuledgerd.service || true
  systemctl stop gpuledger-inventory.path || true
fi
