#!/bin/sh
# dpkg calls it with "configure [OLD-VERSION]", or with "abort-remove" and the like after a removal or an
# upgrade that did not happen, rpm with the number of versions that are installed now.
# It starts nothing and changes no engine: the administrator runs `gpuledger configure` for that. A
# running program goes on with the version with which it started.
set -e
case ${1:-} in abort-*) exit 0 ;; esac
# The package owns its files now. After a removal by gpuledger-setup in this boot, these two have the
# next boot remove the wrapper, and a pod that removes would take the programs for its own.
rm -f /etc/tmpfiles.d/gpuledger-setup.conf /usr/lib/gpuledger/setup.list
if [ -d /run/systemd/system ]; then
  # A reload takes the GPUs from containers that got theirs from NVIDIA's legacy hook. So it is done only
  # where systemd has none of the units yet, or has read another version of one.
  units=$(systemctl show --property=LoadState,NeedDaemonReload 'gpuledger*' 'run-gpuledger-*' 2>/dev/null) || true
  if ! echo "$units" | grep -qx LoadState=loaded || echo "$units" | grep -qx 'LoadState=not-found\|NeedDaemonReload=yes'; then
    systemctl daemon-reload || true
  fi
  udevadm control --reload 2>/dev/null || true # a system in a container has no udevd
fi
