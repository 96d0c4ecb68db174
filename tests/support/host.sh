#!/bin/bash
# A host of its own for the systemd units: systemd boots in namespaces, on a copy-on-write view of this machine's root, with this
# checkout's veilsum in /opt/veilsum. Arguments: scratch folder, checkout, Python's prefix and version, the environment's packages.
# The folder out/ of the scratch folder is /out there; what runs is out/setup before systemd starts, then out/probe as a unit.
set -eu
scratch=$1 source=$2 python=$3 version=$4 packages=$5
mount --make-rprivate /
mkdir -p "$scratch/layer" "$scratch/root" "$scratch/out"
mount -t tmpfs tmpfs "$scratch/layer"
mkdir "$scratch/layer/upper" "$scratch/layer/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$scratch/layer/upper,workdir=$scratch/layer/work" "$scratch/root"
cd "$scratch/root"
mount -t tmpfs tmpfs dev -o mode=755
for device in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0"; do
    read -r name major minor <<< "$device"
    mknod -m 666 "dev/$name" c "$major" "$minor"
done
mkdir -p dev/pts dev/shm out opt/python opt/source opt/packages opt/veilsum/bin
own=opt/veilsum/lib/python$version/site-packages
mkdir -p "$own"
mount -t devpts devpts dev/pts -o newinstance,ptmxmode=666
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
for number in 0 1 2; do ln -s "/proc/self/fd/$number" "dev/$(echo stdin stdout stderr | cut -d' ' -f$((number + 1)))"; done
ln -s /proc/self/fd dev/fd
touch dev/console "$scratch/out/console"
chmod 1777 "$scratch/out"
mount --bind "$scratch/out" out
mount --bind out/console dev/console
mount --bind "$python" opt/python
mount --bind "$source" opt/source
mount --bind "$packages" opt/packages
for place in python source packages; do mount -o remount,bind,ro "opt/$place"; done
printf 'home = /opt/python/bin\n' > opt/veilsum/pyvenv.cfg
printf '/opt/packages\n' > "$own/veilsum.pth"
for part in proto node privacy aggregation participant coordinator deploy; do
    echo "/opt/source/$part" >> "$own/veilsum.pth"
done
ln -s "/opt/python/bin/python$version" opt/veilsum/bin/python
printf '#!/opt/veilsum/bin/python\nfrom veilsum_deploy.cli import main\nmain()\n' > opt/veilsum/bin/veilsum
chmod 755 opt/veilsum/bin/veilsum
mount -t proc proc proc
mount -t sysfs sysfs sys -o ro
mount -t tmpfs tmpfs sys/fs/cgroup
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run -o mode=755
mount -t tmpfs tmpfs tmp -o mode=1777
rm -rf etc/veilsum var/lib/veilsum-* etc/systemd/system
mkdir -p run/lock etc/systemd/system
chroot . /bin/bash -eu /out/setup
cat > etc/systemd/system/probe.service << 'END'
[Unit]
DefaultDependencies=no
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
Environment=PATH=/opt/veilsum/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=/bin/bash -u /out/probe
END
echo booting
clean=(container=other PATH=/opt/veilsum/bin:/usr/sbin:/usr/bin:/sbin:/bin)
mkdir .old
pivot_root . .old # no chroot: in one the kernel refuses user namespaces, which PrivateUsers= makes
umount --lazy /.old
mount --make-rshared / # credentials are mounted by a child and propagate
exec /usr/bin/env -i "${clean[@]}" /lib/systemd/systemd --system --unit=probe.service --show-status=no
