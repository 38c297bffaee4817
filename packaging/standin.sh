# packaging/standin.sh: the stand-in driver of the tests on a booted Debian, with a unit that does what
# NVIDIA's persistence daemon does. The machine has no GPU. The callers set $root and $work.
# shellcheck shell=bash disable=SC2154

# stand_in_driver: installs it in $root.
stand_in_driver() {
  test/fakedriver/build.sh "$work/driver" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the stand-in driver"; }
  cp -a "$work/driver/usr/." "$root/usr/"
  ldconfig -r "$root"
  mkdir -p "$root/usr/local/share/driver"
  cp "$work/driver/run/fakedriver/devices" "$root/usr/local/share/driver/"
  cat >"$root/usr/local/sbin/driver" <<'DRIVER'
#!/bin/sh
set -e
cp -r /usr/local/share/driver /run/fakedriver
{ echo "Character devices:"; echo "195 nvidia"; echo "195 nvidiactl"; echo "510 nvidia-uvm"; sed 1d /proc/devices; } >/run/proc-devices
mount --bind /run/proc-devices /proc/devices
mount -t tmpfs -o mode=755 tmpfs /sys/bus/pci/devices
for gpu in 0000:01:00.0 0000:02:00.0; do
  mkdir "/sys/bus/pci/devices/$gpu"
  echo 0x10de >"/sys/bus/pci/devices/$gpu/vendor"
  echo 0x030200 >"/sys/bus/pci/devices/$gpu/class"
done
for node in "nvidia0 195 0" "nvidia1 195 1" "nvidiactl 195 255" "nvidia-uvm 510 0" "nvidia-uvm-tools 510 1"; do
  set -- $node
  mknod -m 600 "/dev/$1" c "$2" "$3"
done
DRIVER
  chmod 755 "$root/usr/local/sbin/driver"
  cat >"$root/etc/systemd/system/nvidia-persistenced.service" <<'UNIT'
[Unit]
Description=The stand-in driver
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/driver
[Install]
WantedBy=multi-user.target
UNIT
  # If a unit restricts itself, systemd gives it a /proc of its own, which lacks the stand-in's
  # majors.
  local unit
  for unit in gpuledger-inventory gpuledgerd; do
    mkdir -p "$root/etc/systemd/system/$unit.service.d"
    printf '[Service]\nBindReadOnlyPaths=/run/proc-devices:/proc/devices\n' >"$root/etc/systemd/system/$unit.service.d/driver.conf"
  done
  ln -sfn ../nvidia-persistenced.service "$root/etc/systemd/system/multi-user.target.wants/nvidia-persistenced.service"
}
