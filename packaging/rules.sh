#!/bin/sh
# packaging/rules.sh RULES: asks this system's udev what it would do by the rules, in which states of the
# driver's module, and fails where that is not wanted. It takes root, and has a /sys and a /run of its own.
set -eu
[ -n "${GPULEDGER_TEST_PRIVATE_SYS:-}" ] || GPULEDGER_TEST_PRIVATE_SYS=1 exec unshare --mount --propagation private sh "$0" "$@"

rules=$(cat "$1")
mount -t tmpfs tmpfs /sys
mount -t tmpfs tmpfs /run
mkdir -p /run/udev/rules.d
echo "$rules" >/run/udev/rules.d/90-gpuledger.rules
gpu=/sys/devices/pci0000:00/0000:00:05.0 module=/sys/module/nvidia
drm=$gpu/drm/renderD128
mkdir -p $gpu /sys/bus/pci/devices $drm /sys/class/drm
ln -s ../../../bus/pci $gpu/subsystem
echo 0x10de >$gpu/vendor
echo 0x030000 >$gpu/class
: >$gpu/uevent
ln -s ../../../../../class/drm $drm/subsystem
echo DEVTYPE=drm_minor >$drm/uevent

# starts ACTION DEVICE: whether it starts the service.
starts() { SYSTEMD_DEVICE_VERIFY_SYSFS=0 udevadm test --action="$1" "$2" 2>&1 | grep -q '/systemctl --no-block start gpuledger-inventory.service'; }
failed=0
wants() { # wants yes|no STATE ACTION DEVICE
  if starts "$3" "$4"; then is=yes; else is=no; fi
  [ $is = "$1" ] || { echo "the module is $2, $3 of $4: the inventory is taken: $is" >&2; failed=1; }
}
wants no absent bind $gpu # such as to vfio-pci
wants no absent unbind $gpu
wants no absent add $drm # such as of nouveau
mkdir -p $module
: >$module/uevent
for state in coming live; do
  echo $state >$module/initstate
  wants yes $state bind $gpu
  wants yes $state unbind $gpu
  wants yes $state add $module
  wants yes $state add $drm
  wants no $state remove $drm
done
echo going >$module/initstate
wants no going unbind $gpu
wants no going add $module
wants no going remove $module
wants no going add $drm
echo 0x1af4 >$gpu/vendor
echo live >$module/initstate
wants no live bind $gpu
wants no live add $drm
exit $failed
