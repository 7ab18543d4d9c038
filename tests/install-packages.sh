#!/bin/sh
# Installs the Debian packages that tests use where they find them: database servers and clusters, hwloc's tools, libvirtd and
# QEMU, RabbitMQ, memcached, what libvirt-python is built with, Prometheus' promtool, Chromium, systemd's own check of units and
# what confines a program as a unit does, logrotate, formatters of man pages, Podman, and what builds
# packages and images.
# Only what is missing is installed, and only by root; nothing that Debian installs here is started.
# Ends with 0 in any case: tests that miss a package say so and are skipped.

set -u

lacking() {
    [ -n "$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" ] || command -v initdb >/dev/null || echo postgresql
    { [ -x /usr/sbin/mariadbd ] && command -v mariadb-install-db >/dev/null; } || echo mariadb-server
    command -v sqlite3 >/dev/null || echo sqlite3
    [ -e /usr/lib/galera/libgalera_smm.so ] || echo galera-4
    [ -x /usr/sbin/pgbouncer ] || echo pgbouncer
    command -v lstopo-no-graphics >/dev/null || echo hwloc
    [ -x /usr/sbin/libvirtd ] || echo libvirt-daemon-system
    command -v qemu-system-x86_64 >/dev/null || echo qemu-system-x86
    command -v qemu-img >/dev/null || echo qemu-utils
    [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || echo rabbitmq-server
    command -v memcached >/dev/null || echo memcached
    command -v promtool >/dev/null || echo prometheus
    command -v chromium >/dev/null || echo chromium
    command -v systemd-analyze >/dev/null || echo systemd
    /usr/bin/python3 -c 'import seccomp' 2>/dev/null || echo python3-seccomp
    [ -x /usr/sbin/logrotate ] || echo logrotate
    command -v dh >/dev/null || echo debhelper dpkg-dev
    command -v buildah >/dev/null || echo buildah
    command -v podman >/dev/null || echo podman
    command -v mandoc >/dev/null || echo mandoc
    command -v groff >/dev/null || echo groff
    pkg-config --exists libvirt 2>/dev/null || echo libvirt-dev pkg-config gcc python3-dev
}

missing=$(lacking | tr '\n' ' ')
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Some tests will be skipped; they need the Debian packages: $missing"
    exit 0
fi

# The servers of the packages stay down: invoke-rc.d asks this program, and 101 means no.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 0' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
fi

log=$(mktemp)
echo "Installing $missing..."
# shellcheck disable=SC2086 # a list of names
if { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } \
    > "$log" 2>&1 < /dev/null
then
    rm -f "$log"
else
    echo "Some tests will be skipped; apt-get could not install $missing(its last words, the rest is in $log):"
    tail -n 5 "$log"
fi
exit 0
