/* A libcuda.so.1 without GPUs: it shows those of the text file that tests/nvml/fake_nvml.c answers from.
 *
 * It enumerates the file's GPUs ("count", and of each "uuid", "pci", "name", "mig" and its MIG devices' "uuid"; a GPU
 * that is "lost" is left out) as CUDA does with CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: all of it is decided in
 * cuInit. Beside these the file has keys for CUDA alone:
 *
 *     cuda 12080                what cuDriverGetVersion returns
 *     cuda.init !802            cuInit returns this CUresult; "hang" and "crash" as in fake_nvml.c
 *     cuda.order 1 0 2 3        the GPUs, by their number in the file, from the fastest on
 *     cuda.hidden 3 5           GPUs that CUDA does not show although NVML does
 *     cuda.capability 9 0
 *
 * Where NVML is told not to start ("init !18"), CUDA does not start either.
 * Build: cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.so.1 fake_cuda.c
 */
#include <ctype.h>
#include <signal.h>
#include <unistd.h>

#include "fake_facts.h"

typedef int CUresult;
typedef int CUdevice;
enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       DRIVER_MISMATCH = 803, UNKNOWN = 999, SLOTS = 64 };

/* What the process sees: a GPU, or one of its MIG devices (mig >= 0). */
static struct seen { int gpu, mig; } seen[SLOTS];
static int count = -1; /* -1: cuInit was not called, or failed */

/* Find the value of the last line with this key; return 0 when there is none. */
static int look_up(const char *key, char *value) { return facts_current() && fact(key, value); }

/* Find a fact of a GPU: its own line, else that of all GPUs, where %i is its number. */
static int of_gpu(int gpu, const char *key, char *value) {
    char name[LONGEST], *mark;
    snprintf(name, sizeof name, "%d.%s", gpu, key);
    if (look_up(name, value)) return 1;
    if (!look_up(key, value)) return 0;
    if ((mark = strstr(value, "%i"))) {
        snprintf(name, sizeof name, "%.*s%d%s", (int)(mark - value), value, gpu, mark + 2);
        strcpy(value, name);
    }
    return 1;
}

static int of_mig(int gpu, int mig, char *value) {
    char name[LONGEST];
    snprintf(name, sizeof name, "%d.%d.uuid", gpu, mig);
    return look_up(name, value);
}

static int divided(int gpu) {
    char value[LONGEST];
    return of_gpu(gpu, "mig", value) && atoi(value) == 1;
}

static int names(const char *list, int number) {
    char *end;
    for (;; list = end) {
        long one = strtol(list, &end, 10);
        if (end == list) return 0;
        if (one == number) return 1;
    }
}

/* List the GPUs that CUDA can open, in its own order. */
static int openable(int *gpus) {
    char value[LONGEST], hidden[LONGEST] = "", order[LONGEST] = "", *at = order, *end;
    const char *wanted = getenv("CUDA_DEVICE_ORDER");
    int all = look_up("count", value) ? atoi(value) : 0, n = 0, gpu;
    look_up("cuda.hidden", hidden);
    if (!wanted || strcmp(wanted, "PCI_BUS_ID")) look_up("cuda.order", order);
    for (;; at = end) {
        gpu = (int)strtol(at, &end, 10);
        if (end == at) break;
        if (n < SLOTS && !of_gpu(gpu, "lost", value) && !names(hidden, gpu)) gpus[n++] = gpu;
    }
    for (gpu = 0; gpu < all && n < SLOTS; gpu++)
        if (!names(order, gpu) && !of_gpu(gpu, "lost", value) && !names(hidden, gpu)) gpus[n++] = gpu;
    return n;
}

/* Take one device more; return 0 where it is there already, which leaves no device at all. */
static int take(int gpu, int mig) {
    int n;
    for (n = 0; n < count; n++)
        if (seen[n].gpu == gpu && seen[n].mig == mig) return count = 0;
    if (count < SLOTS) seen[count++] = (struct seen){gpu, mig};
    return 1;
}

/* Take the one GPU or MIG device whose UUID begins so; return 0 where the list ends. */
static int take_named(const int *gpus, int n, const char *item, size_t length) {
    struct seen fit = {-1, -1};
    char uuid[LONGEST];
    int i, mig, fits = 0;
    for (i = 0; i < n; i++) {
        if (of_gpu(gpus[i], "uuid", uuid) && !strncmp(uuid, item, length)) { fit = (struct seen){gpus[i], -1}; fits++; }
        for (mig = 0; divided(gpus[i]) && of_mig(gpus[i], mig, uuid); mig++)
            if (!strncmp(uuid, item, length)) { fit = (struct seen){gpus[i], mig}; fits++; }
    }
    return fits == 1 && take(fit.gpu, fit.mig);
}

/* Read CUDA_VISIBLE_DEVICES: the first item that cannot be read ends the list, one that comes twice empties it. */
static void choose(const int *gpus, int n) {
    const char *item = getenv("CUDA_VISIBLE_DEVICES");
    int by_uuid, i, more = 1;
    count = 0;
    if (!item) {
        for (i = 0; i < n; i++) take(gpus[i], -1);
        return;
    }
    item += strspn(item, " \t");
    by_uuid = !strncmp(item, "GPU-", 4) || !strncmp(item, "MIG-", 4);
    while (more) {
        size_t length = strcspn(item += strspn(item, " \t"), ",");
        size_t bare = length;
        while (bare && isspace((unsigned char)item[bare - 1])) bare--;
        if (!bare) return;
        if (by_uuid) more = bare > 4 && take_named(gpus, n, item, bare);
        else {
            char *end;
            long index = strtol(item, &end, 10);
            more = end != item && index >= 0 && index < n && take(gpus[index], -1);
        }
        if (!item[length]) return;
        item += length + 1;
    }
}

/* Where a GPU is divided, the first MIG device is all that a process sees. */
static void divide(void) {
    char uuid[LONGEST];
    int n, whole = 0;
    for (n = 0; n < count; n++) {
        int mig = seen[n].mig < 0 ? 0 : seen[n].mig;
        if (divided(seen[n].gpu) && of_mig(seen[n].gpu, mig, uuid)) {
            seen[0] = (struct seen){seen[n].gpu, mig};
            count = 1;
            return;
        }
    }
    for (n = 0; n < count; n++)
        if (!divided(seen[n].gpu)) seen[whole++] = seen[n];
    count = whole;
}

CUresult cuInit(unsigned flags) {
    char value[LONGEST];
    int gpus[SLOTS], n;
    if (flags) return INVALID_VALUE;
    count = -1;
    if (look_up("cuda.init", value)) {
        if (!strcmp(value, "hang")) for (;;) pause();
        if (!strcmp(value, "crash")) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }
        if (value[0] == '!') return atoi(value + 1);
    } else if (look_up("init", value) && value[0] == '!')
        return atoi(value + 1) == 18 ? DRIVER_MISMATCH : NO_DEVICE;
    n = openable(gpus);
    choose(gpus, n);
    divide();
    if (count) return SUCCESS;
    count = -1;
    return NO_DEVICE;
}

CUresult cuDriverGetVersion(int *out) {
    char value[LONGEST];
    *out = look_up("cuda", value) ? atoi(value) : 12040;
    return SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char **out) {
    static const struct { CUresult code; const char *words; } known[] = {
        {NO_DEVICE, "no CUDA-capable device is detected"},
        {802, "system not yet initialized"},
        {DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"},
        {804, "forward compatibility was attempted on non supported HW"},
        {UNKNOWN, "unknown error"},
    };
    for (unsigned n = 0; n < sizeof known / sizeof *known; n++)
        if (known[n].code == code) { *out = known[n].words; return SUCCESS; }
    *out = NULL;
    return INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *out) {
    if (count < 0) return NOT_INITIALIZED;
    *out = count;
    return SUCCESS;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal) {
    if (count < 0) return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= count) return INVALID_DEVICE;
    *out = ordinal;
    return SUCCESS;
}

static CUresult check(CUdevice device) {
    if (count < 0) return NOT_INITIALIZED;
    return device >= 0 && device < count ? SUCCESS : INVALID_DEVICE;
}

/* The hexadecimal digits of a UUID as 16 bytes; what is shorter ends in zeroes. */
static void bytes_of(const char *uuid, unsigned char *out) {
    int digits = 0;
    memset(out, 0, 16);
    for (uuid += strlen(uuid) < 4 ? 0 : 4; *uuid && digits < 32; uuid++) {
        if (!isxdigit((unsigned char)*uuid)) continue;
        int value = isdigit((unsigned char)*uuid) ? *uuid - '0' : tolower((unsigned char)*uuid) - 'a' + 10;
        out[digits / 2] |= (unsigned char)(digits % 2 ? value : value << 4);
        digits++;
    }
}

CUresult cuDeviceGetUuid(unsigned char *out, CUdevice device) {
    char uuid[LONGEST];
    CUresult found = check(device);
    if (found != SUCCESS) return found;
    if (!of_gpu(seen[device].gpu, "uuid", uuid)) return UNKNOWN;
    bytes_of(uuid, out);
    return SUCCESS;
}

CUresult cuDeviceGetUuid_v2(unsigned char *out, CUdevice device) {
    char uuid[LONGEST];
    if (check(device) != SUCCESS || seen[device].mig < 0) return cuDeviceGetUuid(out, device);
    if (!of_mig(seen[device].gpu, seen[device].mig, uuid)) return UNKNOWN;
    bytes_of(uuid, out);
    return SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *out, int length, CUdevice device) {
    char value[LONGEST];
    unsigned domain, bus, slot;
    CUresult found = check(device);
    if (found != SUCCESS) return found;
    if (!of_gpu(seen[device].gpu, "pci", value) || sscanf(value, "%x:%x:%x", &domain, &bus, &slot) != 3) return UNKNOWN;
    return snprintf(out, (size_t)length, "%04X:%02X:%02X.0", domain, bus, slot) < length ? SUCCESS : INVALID_VALUE;
}

CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice device) {
    char value[LONGEST];
    int major = 9, minor = 0;
    CUresult found = check(device);
    if (found != SUCCESS) return found;
    if (attribute != 75 && attribute != 76) return INVALID_VALUE;
    if (of_gpu(seen[device].gpu, "cuda.capability", value)) sscanf(value, "%d %d", &major, &minor);
    *out = attribute == 75 ? major : minor;
    return SUCCESS;
}
