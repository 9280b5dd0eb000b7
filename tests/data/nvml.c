/* libnvidia-ml.so.1 of a machine whose GPUs stand in the file that $PLAYED_NVML names: a line each, UUID and pids.
 * The real pynvml loads it. Handles are numbers of lines, from 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute_instance; } ProcessInfo;

static int read_line(size_t wanted, char *line, int size) {
    FILE *file = fopen(getenv("PLAYED_NVML"), "r");
    size_t number = 0;
    while (file && fgets(line, size, file) && *line != '\n')
        if (++number == wanted) break;
    if (file) fclose(file);
    return number == wanted;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "played"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    char line[4096];
    for (*count = 0; read_line(*count + 1, line, sizeof line); ++*count);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)((size_t)index + 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char line[4096];
    for (size_t number = 1; read_line(number, line, sizeof line); ++number)
        if (!strcmp(strtok(line, " \n"), uuid)) return *device = (void *)number, SUCCESS;
    return NOT_FOUND;
}

int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { /* the last GPU has the first file */
    unsigned count;
    nvmlDeviceGetCount_v2(&count);
    *minor = count - (unsigned)(size_t)device;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) {
    (void)device, (void)now, (void)next;
    return NOT_SUPPORTED;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    char line[4096];
    if (!read_line((size_t)device, line, sizeof line)) return INVALID_ARGUMENT;
    snprintf(uuid, length, "%s", strtok(line, " \n"));
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, ProcessInfo *found) {
    char line[4096], *pid;
    unsigned room = *count;
    *count = 0;
    if (!read_line((size_t)device, line, sizeof line)) return INVALID_ARGUMENT;
    strtok(line, " \n");
    for (; (pid = strtok(NULL, " \n")); ++*count)
        if (*count < room) found[*count] = (ProcessInfo){.pid = (unsigned)atoi(pid), .used = 1 << 30};
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}
