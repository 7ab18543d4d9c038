"""Preparation of machines for pages that need more than an empty machine."""

from typing import Final

INSTALLED: Final = """
mkdir -p /opt/placement-compute/bin /opt/placement-compute/share/placement-compute
for program in placement-api placement-manage placement-status compute-agent; do
    ln -s "$(command -v $program)" /opt/placement-compute/bin/$program
done
for name in placement compute-agent; do
    ln -s "$CHECKOUT/etc/$name" /opt/placement-compute/share/placement-compute/$name
done
"""
"""Installs the wheel."""

SERVICE: Final = (
    INSTALLED
    + """
mkdir -p /etc/placement
cat > /etc/placement/placement.conf <<'END'
[DEFAULT]
use_stderr = true

[api]
auth_strategy = noauth2

[placement_database]
connection = sqlite:////var/lib/placement/placement.sqlite
sync_on_startup = true
END
sed '/^User=/d; /^Group=/d' $CHECKOUT/etc/placement/placement-api.service \
    > /etc/systemd/system/placement-api.service
systemctl enable --now placement-api
SERVICE=http://127.0.0.1:8778
until curl --silent --fail --output /dev/null -H "X-Auth-Token: admin" "$SERVICE/resource_providers"
do sleep 0.2; done
export OS_AUTH_TYPE=admin_token OS_ENDPOINT=$SERVICE OS_TOKEN=admin OS_PLACEMENT_API_VERSION=1.39
"""
)
"""Runs the service without Keystone."""

CONFIGURED: Final = """
mkdir -p /etc/compute-agent
cat > /etc/compute-agent/compute-agent.conf <<'END'
[placement]
auth_type = admin_token
endpoint = http://127.0.0.1:8778
token = admin

[guests]
drivers = process

[compute]
cpu_dedicated_set = 1
cpu_shared_set = 0
provider_tree = numa

END
if [ -n "${CGROUP_ROOT:-}" ]; then
    printf '[cgroup]\nroot = %s\n\n' "$CGROUP_ROOT" >> /etc/compute-agent/compute-agent.conf
fi
cp $CHECKOUT/etc/compute-agent/compute-agent.service /etc/systemd/system/
"""
"""Configures the agent of this host, with a dedicated CPU and a shared one."""

AGENT: Final = (
    CONFIGURED
    + """
systemctl enable --now compute-agent
until curl --silent http://127.0.0.1:9464/metrics | grep -q '^compute_agent_placement_up 1'
do sleep 0.2; done
"""
)
"""Runs the agent and waits until it has reported."""

RESTORED_AGENT: Final = AGENT.replace("[compute]\n", "[compute]\nupdate_resources_interval = 2\n", 1)
"""Runs the agent, which notices a restored database within seconds instead of a minute."""

DEVICES: Final = """
(cd "$CHECKOUT" && python3 -m tests.doc.device_host /run/host)
"""
"""A host with two NUMA nodes, with a GPU on the first, and a GPU and a NIC behind a switch of the second."""

POSTGRESQL: Final = """
for folder in /usr/lib/postgresql/*/bin; do PATH=$PATH:$folder; done
install -d -o postgres /run/postgresql /run/data
runuser -u postgres -- initdb --pgdata /run/data --auth-local peer --auth-host scram-sha-256 --no-sync \
    > /dev/null
runuser -u postgres -- pg_ctl --pgdata /run/data --silent --wait --log /run/data/log \
    --options "-c fsync=off -c unix_socket_directories=/run/postgresql" start
"""
"""Runs PostgreSQL like Debian's package."""

PLACEMENT_IN_POSTGRESQL: Final = """
runuser -u postgres -- psql -qc "CREATE ROLE placement LOGIN PASSWORD 'secret'"
runuser -u postgres -- createdb --owner placement --encoding UTF8 --template template0 placement
"""
"""Creates the database of the service."""

MARIADB: Final = """
install -d -o mysql /run/mysqld /run/mysql
mariadb-install-db --no-defaults --user=mysql --datadir=/run/mysql > /dev/null
mariadbd --no-defaults --user=mysql --datadir=/run/mysql --socket=/run/mysqld/mysqld.sock \
    --bind-address=127.0.0.1 > /run/mysql/log 2>&1 &
until mariadb -e 'SELECT 1' > /dev/null 2>&1; do sleep 0.5; done
"""
"""Runs MariaDB like Debian's package."""

KEYSTONE: Final = "export OPENSTACK_ONLY_READS=yes"
"""Replaces the cloud by a client that only parses commands."""

PLACEMENT_IN_MARIADB: Final = """
mariadb -e "DELETE FROM mysql.global_priv WHERE User = ''; FLUSH PRIVILEGES"
mariadb -e "CREATE DATABASE placement CHARACTER SET utf8mb4"
mariadb -e "CREATE USER placement@'%' IDENTIFIED BY 'secret'"
mariadb -e "GRANT ALL ON placement.* TO placement@'%'"
"""
"""Runs MariaDB without anonymous users, like Debian's package."""

IN_MARIADB: Final = SERVICE.replace(
    "sqlite:////var/lib/placement/placement.sqlite",
    "mysql+pymysql://placement:secret@127.0.0.1/placement?charset=utf8mb4",
)
"""Runs the service on MariaDB."""

IN_POSTGRESQL: Final = SERVICE.replace(
    "sqlite:////var/lib/placement/placement.sqlite",
    "postgresql+psycopg://placement:secret@127.0.0.1/placement",
)
"""Runs the service on PostgreSQL."""

SETUPS: Final = {
    "install/package": INSTALLED,
    "install/database": POSTGRESQL + MARIADB,
    "install/service": INSTALLED + POSTGRESQL + PLACEMENT_IN_POSTGRESQL,
    "install/keystone": KEYSTONE,
    "install/agent": INSTALLED,
    "howto/claim-in-one-call": SERVICE,
    "howto/reserve": SERVICE,
    "howto/follow-changes": SERVICE,
    "howto/report-a-host": SERVICE,
    "howto/choose-by-price": SERVICE,
    "howto/careful-start": SERVICE + CONFIGURED,
    "host/cpu-sets": INSTALLED + CONFIGURED,
    "howto/run-a-process": SERVICE + AGENT,
    "howto/change-cpu-sets": SERVICE + AGENT,
    "howto/gpus-and-nics": SERVICE
    + DEVICES
    + AGENT.replace("[guests]\n", "[host]\nroot = /run/host\n\n[guests]\n", 1),
    "howto/guest-classes": SERVICE + AGENT,
    "howto/protect-the-host": SERVICE + AGENT,
    "howto/choose-triggers": SERVICE + AGENT,
    "howto/find-what-does-not-match": SERVICE + AGENT,
    "howto/reclaim-a-provider": SERVICE + AGENT,
    "howto/leave-a-host": SERVICE + AGENT,
    "howto/share-settings": SERVICE + AGENT,
    "howto/postgresql-failover": POSTGRESQL + PLACEMENT_IN_POSTGRESQL,
    "howto/restore-the-database": POSTGRESQL + PLACEMENT_IN_POSTGRESQL + IN_POSTGRESQL + RESTORED_AGENT,
    "howto/restore-mariadb": MARIADB + PLACEMENT_IN_MARIADB + IN_MARIADB + RESTORED_AGENT,
    "howto/restore-sqlite": SERVICE + RESTORED_AGENT,
}
"""Preparation by page; other pages start with an empty machine."""
