/* A stand-in for the NVIDIA driver's management library, for machines without a GPU.
 *
 * It answers the NVML functions that the workbench calls, from a timeline of text lines
 *     <second> <device, or -1 for the host> <key> <value>
 * in the order of their seconds; for each key the last line that is due counts. What the functions
 * mean is NVIDIA's public description; the structures are as callers pass them.
 *
 *   POD_TIMELINE  the timeline; without it the library says that no driver is loaded. Whoever
 *                 replaces the file changes the cards at once, for all processes; its events must
 *                 stay in it, in their order
 *   POD_CLOCK     a file with the seconds since the start; without it the line "epoch" (Unix
 *                 seconds) says when the timeline began
 *   POD_CALLS     a file that the name of each called function is appended to
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, SMALL = 7,
       NO_DRIVER = 9, TIMEOUT = 10, LOST = 15 };
enum { DEVICES = 16, SLICES = 8, LINES = 8192, SETS = 64 };

typedef unsigned int uint;
typedef unsigned long long ull;
typedef struct device { int index, slice; } *device_t;
typedef struct { double at; int device; char key[24]; char *value; } line_t;
typedef struct set { double since[DEVICES]; int registered[DEVICES], next; } *set_t;
typedef struct { ull total, free, used; } memory_t;
typedef struct { uint version; ull total, reserved, free, used; } memory_v2_t;
typedef struct { uint gpu, memory; } utilization_t;
typedef struct { uint pid; ull used; uint instance, compute; } process_t;
typedef struct { device_t device; ull type, data; uint instance, compute; } event_t;

int workbench_simulated_pod = 1; /* by this name a caller can tell it from the driver's library */

static struct device cards[DEVICES], slices[DEVICES][SLICES];
/* Two of them: while one is filled, calls that are under way read the other. */
static struct { int count; line_t line[LINES]; } tables[2];
static int shown, loaded;
static struct stat known;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int changed(void) {
    struct stat about;
    const char *path = getenv("POD_TIMELINE");
    if (!path || stat(path, &about)) return 0;
    return about.st_ino != known.st_ino || about.st_size != known.st_size ||
           about.st_mtim.tv_sec != known.st_mtim.tv_sec ||
           about.st_mtim.tv_nsec != known.st_mtim.tv_nsec;
}

static void load(void) {
    const char *path = getenv("POD_TIMELINE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char text[4096], value[4096];
    int next = !shown, count = 0;
    loaded = 0; /* values of an earlier timeline may still be read: not freed */
    if (!file) return;
    fstat(fileno(file), &known);
    while (count < LINES && fgets(text, sizeof text, file)) {
        line_t *one = &tables[next].line[count];
        value[0] = 0;
        if (sscanf(text, "%lf %d %23s %4095[^\n]", &one->at, &one->device, one->key, value) < 3)
            continue;
        one->value = strdup(value);
        count++;
    }
    fclose(file);
    tables[next].count = count;
    shown = next;
    for (int i = 0; i < DEVICES; i++) {
        cards[i] = (struct device){i, -1};
        for (int k = 0; k < SLICES; k++) slices[i][k] = (struct device){i, k};
    }
    loaded = 1;
}

static double now(void);
static _Thread_local double this_call; /* one moment for all that a call looks up */

/* The last due line of a key; `about`: the first word of its value, NULL = any. */
static const char *find(int device, const char *key, const char *about) {
    double second = strcmp(key, "epoch") ? this_call : 0;
    size_t length = about ? strlen(about) : 0;
    int table = shown;
    for (int i = tables[table].count - 1; i >= 0; i--) {
        line_t *one = &tables[table].line[i];
        if (one->at > second || one->device != device || strcmp(one->key, key)) continue;
        if (!about) return one->value;
        if (!strncmp(one->value, about, length) && one->value[length] == ' ')
            return one->value + length + 1;
    }
    return NULL;
}

static double now(void) {
    const char *path = getenv("POD_CLOCK");
    double second = 0;
    if (path) {
        FILE *file = fopen(path, "r");
        if (file) {
            if (fscanf(file, "%lf", &second) != 1) second = 0;
            fclose(file);
        }
        return second;
    }
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    const char *epoch = find(-1, "epoch", NULL);
    return time.tv_sec + time.tv_nsec * 1e-9 - (epoch ? atof(epoch) : 0);
}

/* Until the time is over or the pod is taken away. */
static void wait_for(double seconds) {
    struct timespec step = {0, 10 * 1000 * 1000};
    for (double left = seconds; left > 0 && getenv("POD_TIMELINE"); left -= 0.01)
        nanosleep(&step, NULL);
}

static int scripted(int device, const char *function) {
    const char *names[] = {function, "*"};
    for (int i = 0; i < 2; i++) {
        const char *stall = find(device, "stall", names[i]);
        if (stall && atof(stall) > 0) wait_for(atof(stall));
    }
    for (int i = 0; i < 2; i++) {
        const char *error = find(device, "error", names[i]);
        if (error && atoi(error)) return atoi(error);
    }
    return SUCCESS;
}

/* What comes before every answer: the call is noted, and what is scripted for it happens. */
static int enter(const char *function, device_t device) {
    const char *calls = getenv("POD_CALLS");
    int file = calls ? open(calls, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (file >= 0) {
        char text[96];
        int length = snprintf(text, sizeof text, "%s\n", function);
        if (write(file, text, length) < 0) { /* counting is not worth a failure */ }
        close(file);
    }
    if (!loaded || !getenv("POD_TIMELINE")) return UNINITIALIZED;
    if (changed()) {
        pthread_mutex_lock(&lock);
        if (changed()) load();
        pthread_mutex_unlock(&lock);
    }
    this_call = now();
    int error = scripted(-1, function);
    if (!getenv("POD_TIMELINE")) return UNINITIALIZED; /* taken away while it waited */
    if (!error && device) {
        error = scripted(device->index, function);
        const char *lost = find(device->index, "lost", NULL);
        if (!error && lost && atoi(lost)) return LOST;
    }
    return error;
}

#define ENTER(device) do { int error_ = enter(__func__, device); if (error_) return error_; } while (0)
#define HOST ENTER(NULL)

static int number(int device, const char *key, ull *to) {
    const char *value = find(device, key, NULL);
    if (!value) return NOT_SUPPORTED;
    *to = strtoull(value, NULL, 0);
    return SUCCESS;
}

static int small_number(int device, const char *key, uint *to) {
    ull value;
    int error = number(device, key, &value);
    if (!error) *to = (uint)value;
    return error;
}

static int text(const char *value, char *to, uint length) {
    if (!value) return NOT_SUPPORTED;
    if (strlen(value) >= length) return SMALL;
    strcpy(to, value);
    return SUCCESS;
}

/* A slice: "<number> <uuid>|<name>|<memory>|<used>" */
static int slice_field(device_t device, int which, char *to, size_t length) {
    char about[8];
    snprintf(about, sizeof about, "%d", device->slice);
    const char *at = find(device->index, "slice", about);
    for (; at && which > 0; which--) at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL;
    if (!at) return NOT_FOUND;
    size_t used = strcspn(at, "|");
    if (used >= length) return SMALL;
    memcpy(to, at, used);
    to[used] = 0;
    return SUCCESS;
}

static int is_mig(int device) {
    const char *mode = find(device, "mig", NULL);
    return mode && atoi(mode);
}

static int cards_there(void) {
    const char *value = find(-1, "count", NULL);
    int count = value ? atoi(value) : 0;
    return count > DEVICES ? DEVICES : count;
}

int nvmlInitWithFlags(uint flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    load();
    pthread_mutex_unlock(&lock);
    int error = enter(__func__, NULL);
    return error == UNINITIALIZED ? NO_DRIVER : error;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlSystemGetDriverVersion(char *to, uint length) {
    HOST;
    return text(find(-1, "driver", NULL), to, length);
}
int nvmlSystemGetCudaDriverVersion(int *to) {
    HOST;
    return small_number(-1, "cuda", (uint *)to);
}
int nvmlDeviceGetCount_v2(uint *to) {
    HOST;
    *to = cards_there();
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(uint index, device_t *to) {
    if (index >= DEVICES) return INVALID_ARGUMENT;
    ENTER(&cards[index]);
    if ((int)index >= cards_there()) return INVALID_ARGUMENT;
    *to = &cards[index];
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *to) {
    HOST;
    for (int i = 0; i < cards_there(); i++) {
        const char *own = find(i, "uuid", NULL);
        if (own && !strcmp(own, uuid)) return *to = &cards[i], SUCCESS;
        for (int k = 0; k < SLICES && is_mig(i); k++) {
            char slice[96];
            if (!slice_field(&slices[i][k], 0, slice, sizeof slice) && !strcmp(slice, uuid))
                return *to = &slices[i][k], SUCCESS;
        }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetIndex(device_t device, uint *to) {
    ENTER(device);
    *to = device->index;
    return SUCCESS;
}
int nvmlDeviceGetUUID(device_t device, char *to, uint length) {
    ENTER(device);
    if (device->slice >= 0) return slice_field(device, 0, to, length);
    return text(find(device->index, "uuid", NULL), to, length);
}
int nvmlDeviceGetName(device_t device, char *to, uint length) {
    ENTER(device);
    if (device->slice >= 0) return slice_field(device, 1, to, length);
    return text(find(device->index, "name", NULL), to, length);
}
int nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor) {
    ENTER(device);
    const char *value = find(device->index, "capability", NULL);
    return value && sscanf(value, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}

static int memory(device_t device, ull *total, ull *reserved, ull *used) {
    char size[32], held[32];
    *reserved = 0;
    if (device->slice < 0) {
        int error = number(device->index, "memory", total);
        if (error) return error;
        number(device->index, "reserved", reserved);
        return number(device->index, "used", used);
    }
    int error = slice_field(device, 2, size, sizeof size);
    if (!error) error = slice_field(device, 3, held, sizeof held);
    if (error) return error;
    *total = strtoull(size, NULL, 0);
    *used = strtoull(held, NULL, 0);
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(device_t device, memory_t *to) {
    ENTER(device);
    ull reserved;
    int error = memory(device, &to->total, &reserved, &to->used);
    to->used += reserved; /* the older call counts what the driver keeps */
    to->free = to->total - to->used;
    return error;
}
int nvmlDeviceGetMemoryInfo_v2(device_t device, memory_v2_t *to) {
    ENTER(device);
    int error = memory(device, &to->total, &to->reserved, &to->used);
    to->free = to->total - to->used - to->reserved;
    return error;
}

int nvmlDeviceGetUtilizationRates(device_t device, utilization_t *to) {
    ENTER(device);
    if (is_mig(device->index)) return NOT_SUPPORTED;
    to->memory = 0;
    return small_number(device->index, "util", &to->gpu);
}
int nvmlDeviceGetPowerUsage(device_t device, uint *to) {
    ENTER(device);
    if (device->slice >= 0) return NOT_SUPPORTED;
    return small_number(device->index, "power_mw", to);
}
/* What "energy_mj" said, and since then the power that the timeline has at each moment. */
int nvmlDeviceGetTotalEnergyConsumption(device_t device, ull *to) {
    ENTER(device);
    double total = -1, power = 0, since = 0;
    int table = shown;
    for (int i = 0; i < tables[table].count; i++) {
        line_t *one = &tables[table].line[i];
        if (one->at > this_call) break;
        int base = !strcmp(one->key, "energy_mj");
        if (one->device != device->index || (!base && strcmp(one->key, "power_mw"))) continue;
        if (base && *one->value == '-') total = -1; /* the driver tells none from here on */
        else if (base) total = atof(one->value);
        else {
            if (total >= 0) total += power * (one->at - since);
            power = atof(one->value);
        }
        since = one->at;
    }
    if (total < 0 || device->slice >= 0) return NOT_SUPPORTED;
    *to = (ull)(total + power * (this_call - since));
    return SUCCESS;
}
int nvmlDeviceGetEnforcedPowerLimit(device_t device, uint *to) {
    ENTER(device);
    if (device->slice >= 0) return NOT_SUPPORTED;
    return small_number(device->index, "power_limit_mw", to);
}
int nvmlDeviceGetTemperature(device_t device, int sensor, uint *to) {
    ENTER(device);
    if (sensor) return INVALID_ARGUMENT;
    return small_number(device->index, "temperature", to);
}
int nvmlDeviceGetClockInfo(device_t device, int type, uint *to) {
    ENTER(device);
    if (type != 1) return NOT_SUPPORTED;
    return small_number(device->index, "clock", to);
}
int nvmlDeviceGetMaxClockInfo(device_t device, int type, uint *to) {
    ENTER(device);
    if (type != 1) return NOT_SUPPORTED;
    return small_number(device->index, "clock_max", to);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t device, ull *to) {
    ENTER(device);
    return number(device->index, "throttle", to);
}
int nvmlDeviceGetTotalEccErrors(device_t device, int error, int counter, ull *to) {
    ENTER(device);
    if (error < 0 || error > 1 || counter < 0 || counter > 1) return INVALID_ARGUMENT;
    return number(device->index, error ? "ecc" : "ecc_corrected", to);
}
int nvmlDeviceGetNvLinkState(device_t device, uint link, uint *to) {
    ENTER(device);
    ull links, down = 0;
    if (number(device->index, "nvlinks", &links)) return NOT_SUPPORTED;
    if (link >= links) return INVALID_ARGUMENT;
    number(device->index, "nvlinks_down", &down);
    *to = link >= down;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device_t device, uint *current, uint *pending) {
    ENTER(device);
    int error = small_number(device->index, "mig", current);
    *pending = *current;
    return error;
}
int nvmlDeviceGetMaxMigDeviceCount(device_t device, uint *to) {
    ENTER(device);
    *to = 7;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, uint index, device_t *to) {
    ENTER(device);
    char uuid[96];
    if (index >= SLICES || !is_mig(device->index)) return INVALID_ARGUMENT;
    if (slice_field(&slices[device->index][index], 0, uuid, sizeof uuid)) return NOT_FOUND;
    *to = &slices[device->index][index];
    return SUCCESS;
}

/* Processes: "<pid>:<bytes>[:<slice>] …"; bytes "-" where the driver does not say. */
static int processes(device_t device, uint *count, process_t *to) {
    const char *at = find(device->index, "processes", NULL);
    uint found = 0, room = to ? *count : 0;
    while (at && *at) {
        char bytes[32];
        uint pid;
        int slice = -1, length = 0;
        if (sscanf(at, "%u:%31[^: ]%n", &pid, bytes, &length) < 2) break;
        if (at[length] == ':') slice = atoi(at + length + 1);
        if (device->slice < 0 || device->slice == slice) {
            if (found < room)
                to[found] = (process_t){pid, *bytes == '-' ? ~0ull : strtoull(bytes, NULL, 0),
                                        slice < 0 ? ~0u : (uint)slice, ~0u};
            found++;
        }
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    *count = found;
    return found > room ? SMALL : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, uint *count, process_t *to) {
    ENTER(device);
    return processes(device, count, to);
}
int nvmlDeviceGetComputeRunningProcesses_v2(device_t device, uint *count, process_t *to) {
    ENTER(device); /* what drivers before release 510 have instead */
    return processes(device, count, to);
}

int nvmlEventSetCreate(set_t *to) {
    HOST;
    *to = calloc(1, sizeof **to);
    return *to ? SUCCESS : NO_DRIVER;
}
int nvmlEventSetFree(set_t set) {
    free(set);
    return SUCCESS;
}
int nvmlDeviceRegisterEvents(device_t device, ull types, set_t set) {
    ENTER(device);
    (void)types;
    set->registered[device->index] = 1;
    set->since[device->index] = this_call;
    return SUCCESS;
}
int nvmlEventSetWait_v2(set_t set, event_t *to, uint milliseconds) {
    HOST;
    int table = shown, passed = 0;
    for (int i = 0; i < tables[table].count; i++) { /* those before `next` were told */
        line_t *one = &tables[table].line[i];
        if (one->at > this_call) break;
        if (strcmp(one->key, "xid") || passed++ < set->next) continue;
        set->next++;
        if (one->device < 0 || one->device >= DEVICES) continue;
        if (!set->registered[one->device] || one->at <= set->since[one->device]) continue;
        *to = (event_t){&cards[one->device], 8, strtoull(one->value, NULL, 0), ~0u, ~0u};
        return SUCCESS;
    }
    wait_for(milliseconds / 1000.0);
    return TIMEOUT;
}

const char *nvmlErrorString(int code) {
    static char words[48];
    snprintf(words, sizeof words, "error %d of the simulated driver", code);
    return words;
}
