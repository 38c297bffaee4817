#!/bin/sh
# dpkg calls it with "remove", "purge", "upgrade ..." and others, rpm with the number of versions that stay.
# rpm knows no purge: there, grants and the audit log stay in /var/lib/gpuledger and /var/log/gpuledger.
set -e
if [ "${1:-}" = purge ]; then
  # A removal has taken the package's own programs, and waits until no record of `configure` is left. The
  # purge may come much later: what is there now is another installation, such as gpuledger-setup's.
  for other in /usr/lib/gpuledger/setup.list /usr/bin/gpuledger /usr/bin/gpuledger-runtime /var/lib/gpuledger/configure/*/record.json; do
    [ -e "$other" ] || continue
    echo "gpuledger: $other is of another installation: the ledger, the audit log and the limits stay" >&2
    [ -e /etc/gpuledger/config.toml ] || echo "hint: dpkg has deleted /etc/gpuledger/config.toml, which that installation used: write it again" >&2
    exit 0
  done
  # the limits, and the files of MPS daemons; what is mounted in another mount comes first
  for mounted in $(sed -n 's,^[^ ]* \(/run/gpuledger/[^ ]*\) .*,\1,p' /proc/self/mounts 2>/dev/null | sort -r); do
    umount -l "$mounted" || true
  done
  rm -f /run/cdi/gpuledger.dev-*.json # secrets of grants, and a hook that is not there any more
  rm -rf --one-file-system /var/lib/gpuledger /var/log/gpuledger /run/gpuledger /run/gpuledger-users ||
    echo "hint: what could not be removed is of no use any more: remove it by hand, or, in /run, let the next boot do it" >&2
  rm -f /etc/systemd/system/multi-user.target.wants/gpuledgerd.service
  ! [ -d /etc/gpuledger ] || rmdir --ignore-fail-on-non-empty /etc/gpuledger
fi
case ${1:-} in
  remove | purge | 0) ;;
  *) exit 0 ;; # the package stays, and its postinstall reloads if that is needed
esac
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
