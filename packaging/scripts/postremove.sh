#!/bin/sh
# dpkg calls it with "remove", "purge", "upgrade ..." and others, rpm with the number of versions that stay.
# rpm knows no purge: there, grants and the audit log stay in /var/lib/gpuledger and /var/log/gpuledger.
set -e
if [ "${1:-}" = purge ]; then
  ! grep -qs ' /run/gpuledger/limits ' /proc/self/mounts || umount --lazy /run/gpuledger/limits
  rm -f /run/cdi/gpuledger.dev-*.json # secrets of grants, and a hook that is not there any more
  rm -rf --one-file-system /var/lib/gpuledger /var/log/gpuledger /run/gpuledger /run/gpuledger-users
  rm -f /etc/systemd/system/multi-user.target.wants/gpuledgerd.service
  ! [ -d /etc/gpuledger ] || rmdir --ignore-fail-on-non-empty /etc/gpuledger
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
