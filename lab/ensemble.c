/* Three servers; see the header. */
#include "ensemble.h"

#include "launch.h"
#include "servers.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Command lines --------------------------------------------------------------------------- */

static bool write_text(const lab_member *m, const char *name, const char *text)
{
    char path[300];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", m->folder, name);
    f = fopen(path, "w");
    return f && fputs(text, f) >= 0 && fclose(f) == 0;
}

/* A follower that hears nothing from its leader for five ticks gives it up, and the leader itself too. */
static bool zookeeper(const lab_ensemble *e, int i, lab_launch *l)
{
    static const char *const java_at[] = {"/usr/bin/java", NULL};
    static const char *const jar_at[] = {"/usr/share/java/zookeeper.jar", NULL};
    const lab_member *m = &e->member[i];
    char java[256], jar[256], id[16], text[2048];
    size_t n;

    if (!lab_program_find(java_at, java) || !lab_program_find(jar_at, jar))
        return false;
    n = (size_t)snprintf(text, sizeof text,
                         "tickTime=300\ninitLimit=30\nsyncLimit=5\nmaxSessionTimeout=60000\n"
                         "dataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\n"
                         "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n",
                         m->folder, m->port);
    for (int k = 0; k < LAB_MEMBERS; k++)
        n += (size_t)snprintf(text + n, sizeof text - n, "server.%d=127.0.0.1:%d:%d\n", k + 1,
                              e->member[k].peers, e->member[k].election);
    snprintf(id, sizeof id, "%d\n", i + 1);
    lab_launch_add(l, "%s", java);
    lab_launch_add(l, "-Xmx192m");
    lab_launch_add(l, "-XX:+UseSerialGC");
    lab_launch_add(l, "-XX:TieredStopAtLevel=1");
    lab_launch_add(l, "-Dzookeeper.forceSync=no");
    lab_launch_add(l, "-cp");
    lab_launch_add(l, "%s:%s", m->folder, jar);
    lab_launch_add(l, "org.apache.zookeeper.server.quorum.QuorumPeerMain");
    lab_launch_add(l, "%s/zoo.cfg", m->folder);
    return write_text(m, "zoo.cfg", text) && write_text(m, "myid", id);
}

static bool etcd(const lab_ensemble *e, int i, lab_launch *l)
{
    static const char *const etcd_at[] = {"/usr/bin/etcd", NULL};
    const lab_member *m = &e->member[i];
    char program[256];

    if (!lab_program_find(etcd_at, program))
        return false;
    lab_launch_add(l, "%s", program);
    lab_launch_add(l, "--name=n%d", i + 1);
    lab_launch_add(l, "--data-dir=%s/data", m->folder);
    lab_launch_add(l, "--listen-client-urls=http://127.0.0.1:%d", m->port);
    lab_launch_add(l, "--advertise-client-urls=http://127.0.0.1:%d", m->port);
    lab_launch_add(l, "--listen-peer-urls=http://127.0.0.1:%d", m->peers);
    lab_launch_add(l, "--initial-advertise-peer-urls=http://127.0.0.1:%d", m->peers);
    lab_launch_add(l,
                   "--initial-cluster=n1=http://127.0.0.1:%d,n2=http://127.0.0.1:%d,n3=http://"
                   "127.0.0.1:%d",
                   e->member[0].peers, e->member[1].peers, e->member[2].peers);
    lab_launch_add(l, "--heartbeat-interval=60");
    lab_launch_add(l, "--election-timeout=600");
    return true;
}

/* ---- Starting and ending --------------------------------------------------------------------- */

static bool serves(const lab_ensemble *e, int i)
{
    return e->kind == LAB_ZOOKEEPER
               ? lab_port_ready(e->member[i].port, "srvr", "Mode:")
               : lab_port_ready(e->member[i].port, "GET /health HTTP/1.0\r\n\r\n", "\"true\"");
}

static bool choose_ports(lab_ensemble *e, int i, char why[256])
{
    lab_member *m = &e->member[i];
    char name[48];
    static int count;

    snprintf(name, sizeof name, "%s-%d", lab_server_name(e->kind), count++);
    m->port = lab_port_free();
    m->peers = lab_port_free();
    m->election = lab_port_free();
    return lab_scratch_folder(name, m->folder, why);
}

bool lab_ensemble_start(lab_ensemble *e, lab_server kind, char why[256])
{
    lab_launch l;

    *e = (lab_ensemble){.kind = kind};
    for (int i = 0; i < LAB_MEMBERS; i++)
        if (!choose_ports(e, i, why))
            return false;
    snprintf(why, 256, "%s is not on this machine", lab_server_name(kind));
    for (int i = 0; i < LAB_MEMBERS; i++) {
        lab_launch_init(&l, e->member[i].folder, NULL, SIGKILL);
        if (!(kind == LAB_ZOOKEEPER ? zookeeper : etcd)(e, i, &l))
            return false;
        e->member[i].pid = lab_launch_spawn(&l);
    }
    snprintf(why, 256, "three of %s did not come together", lab_server_name(kind));
    for (int i = 0; i < LAB_MEMBERS; i++)
        if (e->member[i].pid <= 0 || !serves(e, i))
            return false;
    return true;
}

void lab_ensemble_stop(lab_ensemble *e)
{
    for (int i = 0; i < LAB_MEMBERS; i++)
        if (e->member[i].pid > 0) {
            kill(e->member[i].pid, SIGKILL);
            waitpid(e->member[i].pid, NULL, 0);
            e->member[i].pid = 0;
        }
}

/* ---- Looking and cutting --------------------------------------------------------------------- */

/* The text after `"name":"`. */
static bool same_number(const char *json, const char *name, const char *other)
{
    const char *a = strstr(json, name), *b = strstr(json, other);

    return a && b && strtoull(a + strlen(name), NULL, 10) == strtoull(b + strlen(other), NULL, 10);
}

int lab_ensemble_leader(const lab_ensemble *e)
{
    static const char status[] = "POST /v3/maintenance/status HTTP/1.0\r\nContent-Length: "
                                 "2\r\n\r\n{}";
    char reply[2048];

    for (int i = 0; i < LAB_MEMBERS; i++) {
        int port = e->member[i].port;
        if (e->kind == LAB_ZOOKEEPER ? lab_port_ask(port, "srvr", "Mode: leader", reply)
                                     : lab_port_ask(port, status, "\"leader\"", reply) &&
                                           same_number(reply, "\"member_id\":\"", "\"leader\":\""))
            return i;
    }
    return -1;
}

void lab_ensemble_url(const lab_ensemble *e, int one, bool others, char out[512])
{
    bool zk = e->kind == LAB_ZOOKEEPER;
    size_t n = (size_t)snprintf(out, 512, "%s", zk ? "zookeeper://" : "etcd://"), begin = n;

    for (int i = 0; i < LAB_MEMBERS; i++)
        if ((i == one) != others)
            n += (size_t)snprintf(out + n, 512 - n, "%s127.0.0.1:%d", n > begin ? "," : "",
                                  e->member[i].port);
    snprintf(out + n, 512 - n, "%s?session=%dms", zk ? "/lab" : "", LAB_SESSION_MS);
}

void lab_ensemble_signal(const lab_ensemble *e, int one, bool others, int signal)
{
    for (int i = 0; i < LAB_MEMBERS; i++)
        if ((i == one) != others && e->member[i].pid > 0)
            kill(e->member[i].pid, signal);
}
