#!/bin/sh
# dpkg calls it with "configure [OLD-VERSION]", rpm with the number of versions that are installed
# now.
# It starts nothing and changes no engine: the administrator runs `gpuledger configure` for that. A
# running program goes on with the version with which it started.
set -e
# The package owns its files now. After a removal by gpuledger-setup in this boot, these two have the
# next boot remove the wrapper, and a pod that removes would take the programs for its own.
rm -f /etc/tmpfiles.d/gpuledger-setup.conf /usr/lib/gpuledger/setup.list
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
  udevadm control --reload 2>/dev/null || true # a system in a container has no udevd
fi
