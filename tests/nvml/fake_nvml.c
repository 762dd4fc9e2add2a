/* A libnvidia-ml.so.1 without GPUs: the real nvidia-ml-py loads it, and a text file says what it answers.
 *
 * The file is named by DISTCHECK_FAKE_NVML, else it is /etc/distcheck-fake-nvml; it is read at every call, so a test
 * can change it in between. Each line is KEY VALUE, "#" begins a comment, and the last line with a key counts:
 *
 *     driver 550.54.15          a fact of the node
 *     uuid GPU-0                the same for every GPU
 *     3.uuid GPU-6d1c           of GPU 3 alone; 3.1.uuid is of its MIG device 1
 *     3.lost yes                every call on GPU 3 returns NVML_ERROR_GPU_IS_LOST
 *     init !18                  the call returns NVML error 18
 *     3.name hang               the call never returns; "crash" ends the process with SIGSEGV
 *
 * In a value for every GPU, %i is replaced by the GPU's index. A key that no line has: NVML_ERROR_NOT_SUPPORTED.
 * Build: cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fake_nvml.c
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, UNKNOWN = 999, ABSENT = -1, LONGEST = 256, SLOTS = 64 };

/* A handle points into this table: row 0 of a GPU is the GPU, rows 1 and up are its MIG devices. */
static struct place { int gpu, mig; } places[SLOTS][SLOTS];
typedef struct place *device_t;

/* Return what the last line with this key makes the call return, ABSENT when there is none. */
static nvmlReturn_t look_up(const char *key, char *value) {
    const char *path = getenv("DISTCHECK_FAKE_NVML");
    FILE *file = fopen(path ? path : "/etc/distcheck-fake-nvml", "r");
    char line[LONGEST * 2], name[LONGEST], text[LONGEST];
    nvmlReturn_t found = ABSENT;
    if (!file) return DRIVER_NOT_LOADED;
    while (fgets(line, sizeof line, file)) {
        text[0] = 0;
        if (sscanf(line, "%255s %255[^\r\n]", name, text) < 1 || name[0] == '#' || strcmp(name, key)) continue;
        strcpy(value, text);
        found = SUCCESS;
    }
    fclose(file);
    if (found != SUCCESS) return found;
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

static nvmlReturn_t number(device_t device, const char *key, unsigned long long *out) {
    char value[LONGEST];
    nvmlReturn_t found = device ? ask(device, key, value) : read_value(key, value);
    if (found == SUCCESS) *out = strtoull(value, NULL, 0);
    return found;
}

static nvmlReturn_t text_of(device_t device, const char *key, char *out, unsigned size) {
    char value[LONGEST];
    nvmlReturn_t found = device ? ask(device, key, value) : read_value(key, value);
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
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size) { return text_of(NULL, "driver", out, size); }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned size) { return text_of(NULL, "nvml", out, size); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
    unsigned long long value;
    nvmlReturn_t found = number(NULL, "cuda", &value);
    if (found == SUCCESS) *out = (int)value;
    return found;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) {
    unsigned long long value;
    nvmlReturn_t found = number(NULL, "count", &value);
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
nvmlReturn_t nvmlDeviceGetIndex(device_t device, unsigned *out) { *out = (unsigned)device->gpu; return SUCCESS; }

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
nvmlReturn_t nvmlDeviceGetMinorNumber(device_t d, unsigned *out) { return unsigned_of(d, "minor", out); }
nvmlReturn_t nvmlDeviceGetComputeMode(device_t d, unsigned *out) { return unsigned_of(d, "compute_mode", out); }
nvmlReturn_t nvmlDeviceGetPersistenceMode(device_t d, unsigned *out) { return unsigned_of(d, "persistence", out); }

/* MIG */
nvmlReturn_t nvmlDeviceGetMigMode(device_t d, unsigned *current, unsigned *pending) {
    nvmlReturn_t found = unsigned_of(d, "mig", current);
    if (found == SUCCESS) *pending = *current;
    return found;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(device_t d, unsigned *out) { return unsigned_of(d, "mig.slots", out); }
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(device_t d, unsigned slot, device_t *out) {
    return slot < SLOTS - 1 ? handle(d->gpu, (int)slot, out) : INVALID_ARGUMENT;
}
