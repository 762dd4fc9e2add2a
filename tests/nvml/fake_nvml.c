/* A libnvidia-ml.so.1 without GPUs: the real nvidia-ml-py loads it, and a text file says what it answers.
 *
 * The file is named by DISTCHECK_FAKE_NVML, else it is /etc/distcheck-fake-nvml; it is looked at at every call, so a
 * test can change it in between. Each line is KEY VALUE, "#" begins a comment, and the last line with a key counts:
 *
 *     driver 550.54.15          a fact of the node
 *     uuid GPU-0                the same for every GPU
 *     3.uuid GPU-6d1c           of GPU 3 alone; 3.1.uuid is of its MIG device 1
 *     3.lost yes                every call on GPU 3 returns NVML_ERROR_GPU_IS_LOST
 *     init !18                  the call returns NVML error 18
 *     3.name hang               the call never returns; "crash" ends the process with SIGSEGV
 *
 * In a value for every GPU, %i is replaced by the GPU's index. A key that no line has: NVML_ERROR_NOT_SUPPORTED.
 * Keys may have a place of their own behind them, which goes before the key alone:
 *
 *     link.state 1              of every NVLink; how many there are says "links"
 *     3.link.state.7 0          of GPU 3's link 7 alone
 *     field.161.7 2             value of the field 161 in scope 7 (a link); "field.230 type 1 4" is of type 1
 *     2.p2p.read.5 4            of GPU 2 to GPU 5
 *     processes 4711:1024 77:-  process ids with the bytes that they use; "none" is an empty list
 *     memory.used 581828608     what version 1 of the call returns: with the driver's reserve, memory.reserved
 *     cpus 0-55,112-167
 *     3.pcie.replays 7 grows 40 a counter: 7, and 40 more each second after the file was written
 *
 * tests/probe/test_gpu_recorded.py compares it with what a real library answered: tests/recorded/gpu/h200_vm/calls.json.
 * Build: cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fake_nvml.c
 */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "fake_facts.h"

typedef int nvmlReturn_t;
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999, ABSENT = -1, SLOTS = 64 };

/* The value that NVML expects in a structure's first member. */
#define VERSIONED(structure, version) ((unsigned)sizeof(structure) | (version) << 24)

/* A handle points into this table: row 0 of a GPU is the GPU, rows 1 and up are its MIG devices. */
static struct place { int gpu, mig; } places[SLOTS][SLOTS];
typedef struct place *device_t;
static struct place node;
#define NODE (&node) /* instead of a GPU, for facts of the node; NULL is an invalid argument */

/* Return what the last line with this key makes the call return, ABSENT when there is none. */
static nvmlReturn_t look_up(const char *key, char *value) {
    if (!facts_current()) return DRIVER_NOT_LOADED;
    if (!fact(key, value)) return ABSENT;
    if (!strcmp(value, "hang")) for (;;) pause();
    if (!strcmp(value, "crash")) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }
    return value[0] == '!' ? atoi(value + 1) : SUCCESS;
}

static nvmlReturn_t read_value(const char *key, char *value) {
    nvmlReturn_t found = look_up(key, value);
    return found == ABSENT ? NOT_SUPPORTED : found;
}

static nvmlReturn_t ask(device_t device, const char *key, char *value) {
    char name[LONGEST], *mark;
    nvmlReturn_t found;
    if (!device) return INVALID_ARGUMENT;
    if (device == NODE) return read_value(key, value);
    snprintf(name, sizeof name, "%d.lost", device->gpu);
    if (look_up(name, value) != ABSENT) return GPU_IS_LOST;
    if (device->mig >= 0) {
        snprintf(name, sizeof name, "%d.%d.%s", device->gpu, device->mig, key);
        return read_value(name, value);
    }
    snprintf(name, sizeof name, "%d.%s", device->gpu, key);
    found = look_up(name, value);
    if (found != ABSENT) return found;
    found = read_value(key, value);
    if (found == SUCCESS && (mark = strstr(value, "%i"))) {
        snprintf(name, sizeof name, "%.*s%d%s", (int)(mark - value), value, device->gpu, mark + 2);
        strcpy(value, name);
    }
    return found;
}

/* Return a number, grown since the file was written if it is one that grows. */
static unsigned long long grown(const char *value) {
    const char *grows = strstr(value, " grows ");
    unsigned long long start = strtoull(value, NULL, 0);
    struct timespec now;
    struct stat file;
    double seconds;
    if (!grows || stat(facts_path(), &file)) return start;
    clock_gettime(CLOCK_REALTIME, &now);
    seconds = (double)(now.tv_sec - file.st_mtim.tv_sec) + 1e-9 * (double)(now.tv_nsec - file.st_mtim.tv_nsec);
    return start + (unsigned long long)(seconds * strtod(grows + 7, NULL));
}

static nvmlReturn_t number(device_t device, const char *key, unsigned long long *out) {
    char value[LONGEST];
    nvmlReturn_t found = ask(device, key, value);
    if (found == SUCCESS) *out = grown(value);
    return found;
}

static nvmlReturn_t text_of(device_t device, const char *key, char *out, unsigned size) {
    char value[LONGEST];
    nvmlReturn_t found = ask(device, key, value);
    if (found != SUCCESS) return found;
    if (strlen(value) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

/* Start and end */
nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    char value[LONGEST];
    nvmlReturn_t found = look_up("init", value);
    (void)flags;
    return found == ABSENT ? SUCCESS : found;
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t code) {
    static char words[LONGEST];
    snprintf(words, sizeof words, "fake error %d", code);
    return words;
}

/* The node */
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size) { return text_of(NODE, "driver", out, size); }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned size) { return text_of(NODE, "nvml", out, size); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
    unsigned long long value;
    nvmlReturn_t found = number(NODE, "cuda", &value);
    if (found == SUCCESS) *out = (int)value;
    return found;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) {
    unsigned long long value;
    nvmlReturn_t found = number(NODE, "count", &value);
    if (found == SUCCESS) *out = (unsigned)value;
    return found;
}

/* Handles */
static nvmlReturn_t handle(int gpu, int mig, device_t *out) {
    char value[LONGEST];
    device_t device = &places[gpu][mig + 1];
    nvmlReturn_t found;
    device->gpu = gpu;
    device->mig = mig;
    found = ask(device, mig < 0 ? "handle" : "uuid", value);
    if (mig < 0 && found == NOT_SUPPORTED) found = SUCCESS;
    if (mig >= 0 && found == NOT_SUPPORTED) found = NOT_FOUND;
    if (found == SUCCESS) *out = device;
    return found;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *out) {
    unsigned count;
    nvmlReturn_t found = nvmlDeviceGetCount_v2(&count);
    if (found != SUCCESS) return found;
    return index < count && index < SLOTS ? handle((int)index, -1, out) : INVALID_ARGUMENT;
}
static nvmlReturn_t search(const char *key, const char *wanted, device_t *out) {
    unsigned count, index;
    char value[LONGEST];
    nvmlReturn_t found = nvmlDeviceGetCount_v2(&count);
    if (found != SUCCESS) return found;
    for (index = 0; index < count && index < SLOTS; index++)
        if (handle((int)index, -1, out) == SUCCESS && ask(*out, key, value) == SUCCESS && !strcmp(value, wanted))
            return SUCCESS;
    return NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, device_t *out) { return search("uuid", uuid, out); }
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pci, device_t *out) { return search("pci", pci, out); }
nvmlReturn_t nvmlDeviceGetIndex(device_t device, unsigned *out) {
    if (!device) return INVALID_ARGUMENT;
    *out = (unsigned)device->gpu;
    return SUCCESS;
}

/* A GPU */
nvmlReturn_t nvmlDeviceGetUUID(device_t d, char *out, unsigned size) { return text_of(d, "uuid", out, size); }
nvmlReturn_t nvmlDeviceGetName(device_t d, char *out, unsigned size) { return text_of(d, "name", out, size); }
nvmlReturn_t nvmlDeviceGetSerial(device_t d, char *out, unsigned size) { return text_of(d, "serial", out, size); }

struct pci { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char id[32]; };
nvmlReturn_t nvmlDeviceGetPciInfo_v3(device_t d, struct pci *out) {
    char value[LONGEST];
    nvmlReturn_t found = ask(d, "pci", value);
    if (found != SUCCESS) return found;
    memset(out, 0, sizeof *out);
    if (sscanf(value, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3) return UNKNOWN;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    snprintf(out->id, sizeof out->id, "%08X:%02X:%02X.0", out->domain, out->bus & 0xff, out->device & 0xff);
    if (ask(d, "pci.ids", value) == SUCCESS) sscanf(value, "%x %x", &out->device_id, &out->subsystem_id);
    return SUCCESS;
}

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
nvmlReturn_t nvmlDeviceGetMemoryInfo(device_t d, struct memory *out) {
    nvmlReturn_t found = number(d, "memory.total", &out->total);
    if (found == SUCCESS) found = number(d, "memory.used", &out->used);
    if (found == SUCCESS) out->free = out->total - out->used;
    return found;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(device_t d, struct memory_v2 *out) {
    struct memory all;
    unsigned long long reserved;
    nvmlReturn_t found = number(d, "memory.reserved", &reserved);
    if (out->version != VERSIONED(*out, 2)) return ARGUMENT_VERSION_MISMATCH;
    if (found == SUCCESS) found = nvmlDeviceGetMemoryInfo(d, &all);
    if (found != SUCCESS) return found;
    out->total = all.total;
    out->reserved = reserved;
    out->used = all.used - reserved;
    out->free = all.free;
    return SUCCESS;
}

static nvmlReturn_t unsigned_of(device_t d, const char *key, unsigned *out) {
    unsigned long long value;
    nvmlReturn_t found = number(d, key, &value);
    if (found == SUCCESS) *out = (unsigned)value;
    return found;
}
/* Ask for KEY.PLACE, and where no line has it for KEY alone. */
static nvmlReturn_t ask_at(device_t d, const char *key, unsigned place, char *value) {
    char name[LONGEST];
    nvmlReturn_t found;
    snprintf(name, sizeof name, "%s.%u", key, place);
    found = ask(d, name, value);
    return found == NOT_SUPPORTED ? ask(d, key, value) : found;
}
static nvmlReturn_t number_at(device_t d, const char *key, unsigned place, unsigned long long *out) {
    char value[LONGEST];
    nvmlReturn_t found = ask_at(d, key, place, value);
    if (found == SUCCESS) *out = grown(value);
    return found;
}
static nvmlReturn_t unsigned_at(device_t d, const char *key, unsigned place, unsigned *out) {
    unsigned long long value;
    nvmlReturn_t found = number_at(d, key, place, &value);
    if (found == SUCCESS) *out = (unsigned)value;
    return found;
}

#define ONE_NUMBER(name, key) \
    nvmlReturn_t nvmlDeviceGet##name(device_t d, unsigned *out) { return unsigned_of(d, key, out); }
ONE_NUMBER(ComputeMode, "compute_mode")
ONE_NUMBER(DisplayActive, "display")
ONE_NUMBER(CurrPcieLinkGeneration, "pcie.gen")
ONE_NUMBER(CurrPcieLinkWidth, "pcie.width")
ONE_NUMBER(MaxPcieLinkGeneration, "pcie.max_gen")
ONE_NUMBER(MaxPcieLinkWidth, "pcie.max_width")
ONE_NUMBER(PcieReplayCounter, "pcie.replays")
ONE_NUMBER(EnforcedPowerLimit, "power.limit")
ONE_NUMBER(PowerUsage, "power.usage")
ONE_NUMBER(PowerManagementDefaultLimit, "power.default")
ONE_NUMBER(RetiredPagesPendingStatus, "retired.pending")

#define ONE_NUMBER_OF_A_KIND(name, key) \
    nvmlReturn_t nvmlDeviceGet##name(device_t d, unsigned kind, unsigned *out) { return unsigned_at(d, key, kind, out); }
ONE_NUMBER_OF_A_KIND(ClockInfo, "clock")
ONE_NUMBER_OF_A_KIND(ApplicationsClock, "clock.application")
ONE_NUMBER_OF_A_KIND(DefaultApplicationsClock, "clock.application_default")
ONE_NUMBER_OF_A_KIND(Temperature, "temperature")
ONE_NUMBER_OF_A_KIND(TemperatureThreshold, "temperature.threshold")

struct utilization { unsigned gpu, memory; };
nvmlReturn_t nvmlDeviceGetUtilizationRates(device_t d, struct utilization *out) {
    out->memory = 0;
    return unsigned_of(d, "utilization", &out->gpu);
}

/* Old drivers do not have this one: "temperature.versions !13". */
struct temperature { unsigned version, sensor; int celsius; };
nvmlReturn_t nvmlDeviceGetTemperatureV(device_t d, struct temperature *out) {
    char value[LONGEST];
    nvmlReturn_t found = ask(d, "temperature.versions", value);
    if (found != SUCCESS && found != NOT_SUPPORTED) return found;
    if (out->version != VERSIONED(*out, 1)) return ARGUMENT_VERSION_MISMATCH;
    return unsigned_at(d, "temperature", out->sensor, (unsigned *)&out->celsius);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(device_t d, char *out, unsigned size) { return text_of(d, "vbios", out, size); }
nvmlReturn_t nvmlDeviceGetNumaNodeId(device_t d, int *out) { return unsigned_of(d, "own_numa", (unsigned *)out); }
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(device_t d, unsigned long long *out) {
    return number(d, "reasons", out);
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(device_t d, unsigned long long *out) {
    nvmlReturn_t found = number(d, "throttle_reasons", out);
    return found == NOT_SUPPORTED ? number(d, "reasons", out) : found;
}

/* Errors of the memory: ecc.KIND.SINCE, each 0 or 1 as in nvml.h */
nvmlReturn_t nvmlDeviceGetEccMode(device_t d, unsigned *current, unsigned *pending) {
    nvmlReturn_t found = unsigned_of(d, "ecc", current);
    if (found == SUCCESS && unsigned_of(d, "ecc.pending", pending) != SUCCESS) *pending = *current;
    return found;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(device_t d, unsigned kind, unsigned since, unsigned long long *out) {
    char key[LONGEST];
    snprintf(key, sizeof key, "ecc.%u.%u", kind, since);
    return number(d, key, out);
}
nvmlReturn_t nvmlDeviceGetRemappedRows(device_t d, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failed) {
    char value[LONGEST];
    nvmlReturn_t found = ask(d, "rows", value);
    if (found != SUCCESS) return found;
    return sscanf(value, "%u %u %u %u", corr, unc, pending, failed) == 4 ? SUCCESS : UNKNOWN;
}

/* Fields; the value stands in a union of 8 bytes */
struct field {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    nvmlReturn_t result;
    union { double d; unsigned u; unsigned long ul; unsigned long long ull; long long ll; int i; unsigned short us; } value;
};
nvmlReturn_t nvmlDeviceGetFieldValues(device_t d, int count, struct field *values) {
    char key[LONGEST], value[LONGEST];
    nvmlReturn_t found = ask(d, "fields", value);
    unsigned long long most = found == SUCCESS ? strtoull(value, NULL, 0) : ~0ULL;
    int n, used;
    if (found != SUCCESS && found != NOT_SUPPORTED) return found;
    if ((unsigned long long)count > most) return INVALID_ARGUMENT;
    for (n = 0; n < count; n++) {
        const char *text = value;
        snprintf(key, sizeof key, "field.%u", values[n].id);
        values[n].result = ask_at(d, key, values[n].scope, value);
        if (values[n].result != SUCCESS) continue;
        values[n].type = 3;
        if (sscanf(value, "type %u %n", &values[n].type, &used) == 1) text = value + used;
        memset(&values[n].value, 0, sizeof values[n].value);
        switch (values[n].type) {
        case 0: values[n].value.d = strtod(text, NULL); break;
        case 1: values[n].value.u = (unsigned)grown(text); break;
        case 4: values[n].value.ll = (long long)grown(text); break;
        case 5: values[n].value.i = (int)strtol(text, NULL, 0); break;
        case 6: values[n].value.us = (unsigned short)strtoul(text, NULL, 0); break;
        default: values[n].value.ull = grown(text);
        }
    }
    return SUCCESS;
}

/* NVLink */
static nvmlReturn_t of_link(device_t d, unsigned link, const char *key, unsigned *out) {
    unsigned count;
    nvmlReturn_t found = unsigned_of(d, "links", &count);
    if (found != SUCCESS) return found;
    return link < count ? unsigned_at(d, key, link, out) : INVALID_ARGUMENT;
}
nvmlReturn_t nvmlDeviceGetNvLinkState(device_t d, unsigned link, unsigned *out) {
    return of_link(d, link, "link.state", out);
}
nvmlReturn_t nvmlDeviceGetNvLinkVersion(device_t d, unsigned link, unsigned *out) {
    return of_link(d, link, "link.version", out);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(device_t d, unsigned link, unsigned *out) {
    return of_link(d, link, "link.remote", out);
}
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(device_t d, unsigned link, unsigned counter, unsigned long long *out) {
    char key[LONGEST];
    snprintf(key, sizeof key, "link.errors.%u", counter);
    return number_at(d, key, link, out);
}

/* The fabric: all versions of the structure, unless "fabric.version" says which is the newest */
struct fabric_v1 { unsigned char cluster[16]; nvmlReturn_t status; unsigned clique, state; };
struct fabric { unsigned version; struct fabric_v1 v1; unsigned mask; };
struct fabric_v3 { struct fabric v2; unsigned char summary; };
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(device_t d, struct fabric_v1 *out) {
    char cluster[LONGEST];
    unsigned n, byte;
    nvmlReturn_t found = unsigned_of(d, "fabric.state", &out->state);
    if (found != SUCCESS) return found;
    out->clique = 0;
    out->status = SUCCESS;
    memset(out->cluster, 0, sizeof out->cluster);
    unsigned_of(d, "fabric.status", (unsigned *)&out->status);
    unsigned_of(d, "fabric.clique", &out->clique);
    if (ask(d, "fabric.cluster", cluster) == SUCCESS)
        for (n = 0; n < 16 && sscanf(cluster + 2 * n, "%2x", &byte) == 1; n++) out->cluster[n] = (unsigned char)byte;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(device_t d, struct fabric_v3 *out) {
    unsigned newest = 3, summary = 0, version = out->v2.version >> 24, size = out->v2.version & 0xffffff;
    nvmlReturn_t found;
    unsigned_of(d, "fabric.version", &newest);
    if (!d) return INVALID_ARGUMENT;
    if (version < 2 || version > newest) return ARGUMENT_VERSION_MISMATCH;
    if (size != (version == 2 ? sizeof out->v2 : sizeof *out)) return ARGUMENT_VERSION_MISMATCH;
    found = nvmlDeviceGetGpuFabricInfo(d, &out->v2.v1);
    if (found != SUCCESS) return found;
    out->v2.mask = 0;
    unsigned_of(d, "fabric.mask", &out->v2.mask);
    if (version == 3) {
        unsigned_of(d, "fabric.summary", &summary);
        out->summary = (unsigned char)summary;
    }
    return SUCCESS;
}

/* Processes */
struct process { unsigned pid; unsigned long long memory; unsigned instance, compute_instance; };
static nvmlReturn_t processes(device_t d, const char *key, unsigned *count, struct process *out) {
    char value[LONGEST], *word, *rest, *bytes;
    unsigned n = 0, room = *count;
    nvmlReturn_t found = ask(d, key, value);
    if (found != SUCCESS) return found;
    for (word = strtok_r(value, " ", &rest); word && (bytes = strchr(word, ':')); word = strtok_r(NULL, " ", &rest), n++) {
        if (!out || n >= room) continue;
        memset(&out[n], 0, sizeof out[n]);
        out[n].instance = out[n].compute_instance = ~0U; /* none, as on a GPU that is not divided */
        out[n].pid = (unsigned)strtoul(word, NULL, 10);
        out[n].memory = bytes[1] == '-' ? ~0ULL : strtoull(bytes + 1, NULL, 0);
    }
    *count = n;
    return n > room ? INSUFFICIENT_SIZE : SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(device_t d, unsigned *count, struct process *out) {
    return processes(d, "processes", count, out);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t d, unsigned *count, struct process *out) {
    return processes(d, "mps_processes", count, out);
}

/* What is next to a GPU, and the ways between two */
static nvmlReturn_t bits(device_t d, const char *key, unsigned words, unsigned long *out) {
    char value[LONGEST], *word, *rest;
    unsigned first, last, n;
    nvmlReturn_t found = ask(d, key, value);
    if (found != SUCCESS) return found;
    memset(out, 0, words * sizeof *out);
    for (word = strtok_r(value, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        n = (unsigned)sscanf(word, "%u-%u", &first, &last);
        if (n < 1) return UNKNOWN;
        for (last = n == 2 ? last : first; first <= last && first / 64 < words; first++)
            out[first / 64] |= 1UL << first % 64;
    }
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCpuAffinity(device_t d, unsigned words, unsigned long *out) {
    return bits(d, "cpus", words, out);
}
nvmlReturn_t nvmlDeviceGetMemoryAffinity(device_t d, unsigned words, unsigned long *out, unsigned scope) {
    (void)scope;
    return bits(d, "numa", words, out);
}
nvmlReturn_t nvmlDeviceGetP2PStatus(device_t d, device_t other, unsigned kind, unsigned *out) {
    static const char *const keys[] = {"p2p.read", "p2p.write", "p2p.nvlink"};
    return other && kind < 3 ? unsigned_at(d, keys[kind], (unsigned)other->gpu, out) : INVALID_ARGUMENT;
}
struct confidential { unsigned environment, feature, tools; };
nvmlReturn_t nvmlSystemGetConfComputeState(struct confidential *out) {
    memset(out, 0, sizeof *out);
    return unsigned_of(NODE, "confidential", &out->feature);
}

/* MIG */
nvmlReturn_t nvmlDeviceGetMigMode(device_t d, unsigned *current, unsigned *pending) {
    nvmlReturn_t found = unsigned_of(d, "mig", current);
    if (found == SUCCESS) *pending = *current;
    return found;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(device_t d, unsigned *out) {
    nvmlReturn_t found = unsigned_of(d, "mig.slots", out);
    if (found != NOT_SUPPORTED) return found;
    *out = 0; /* also where MIG is off or not supported */
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(device_t d, unsigned slot, device_t *out) {
    return slot < SLOTS - 1 ? handle(d->gpu, (int)slot, out) : INVALID_ARGUMENT;
}
