/* A stand-in for NVIDIA's management library, small enough to read, for tests through the real pynvml.

   Two cards that differ (and one MIG device), in the order of their PCI addresses; CUDA would number them the other way round
   (the faster one first). What they say is bent by environment variables, i being NVML's index:

     FAKE_NVML_INIT=code           what nvmlInit returns
     FAKE_NVML_COUNT=n             how many cards there are (2)
     FAKE_NVML_<METRIC>_<i>=code   what a metric's call returns: MEMORY, PROCESSES, UTILIZATION, TEMPERATURE, POWER, ENERGY
     FAKE_NVML_SAY_<WORD>_<i>=n    a value: USED, RESERVED, TOTAL, PROCESS_USED, POWER, TEMPERATURE
     FAKE_NVML_PID_<i>=n           the one process on the card: a number, or "self"
     FAKE_NVML_LOST=path           once this file exists, card 0 has fallen off the bus
     FAKE_NVML_LOG=path            one line for each opening, look-up of a handle, and closing

   Built with -DOLD_DRIVER it lacks the calls that came later. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
enum { CARDS = 2 };

typedef unsigned long long u64;
typedef struct { const char *uuid, *name; u64 total, reserved, used, process_used; unsigned power_mw, celsius, busy; u64 energy_mj; } Card;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } Process;

static Card cards[CARDS] = {
    {"GPU-a0000000-0000-4000-8000-000000000001", "Small Card", 8ull << 30, 256ull << 20, 1ull << 30, 700ull << 20, 75000, 41, 17, 5000000},
    {"GPU-b0000000-0000-4000-8000-000000000002", "Large Card", 24ull << 30, 512ull << 20, 3ull << 30, 2048ull << 20, 250500, 63, 88, 9000000},
};
static Card mig = {"MIG-c0000000-0000-5000-8000-000000000003", "Large Card MIG 1g.5gb", 5ull << 30, 64ull << 20, 2ull << 30, 0, 0, 0, 0, 0};

static const char *setting(const char *word, const Card *card) {
    char name[96];
    if (card == &mig) snprintf(name, sizeof name, "FAKE_NVML_%s_MIG", word);
    else if (card) snprintf(name, sizeof name, "FAKE_NVML_%s_%d", word, (int)(card - cards));
    else snprintf(name, sizeof name, "FAKE_NVML_%s", word);
    return getenv(name);
}

static u64 said(const char *word, const Card *card, u64 usually) {
    const char *text = setting(word, card);
    return text ? strtoull(text, NULL, 10) : usually;
}

static void note(const char *what) {
    const char *path = setting("LOG", NULL);
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) { fprintf(file, "%s\n", what); fclose(file); }
}

static int fault(const char *metric, const Card *card) {
    const char *lost = setting("LOST", NULL);
    if (card == &cards[0] && lost && access(lost, F_OK) == 0) return GPU_IS_LOST;
    /* A MIG device has memory of its own; the rest belongs to the whole card. */
    return (int)said(metric, card, card == &mig && strcmp(metric, "MEMORY") ? NOT_SUPPORTED : SUCCESS);
}

static int copy(const char *text, char *into, unsigned length) {
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(into, text);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; note("init"); return (int)said("INIT", NULL, SUCCESS); }
int nvmlShutdown(void) { note("shutdown"); return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake library"; }
int nvmlSystemGetDriverVersion(char *into, unsigned length) { return copy("570.00.01", into, length); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)said("COUNT", NULL, CARDS); return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Card **card) {
    if (index >= CARDS) return INVALID_ARGUMENT;
    note("handle");
    *card = &cards[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Card **card) {
    for (int i = 0; i < CARDS; i++)
        if (strcmp(cards[i].uuid, uuid) == 0) return nvmlDeviceGetHandleByIndex_v2((unsigned)i, card);
    if (strcmp(mig.uuid, uuid) != 0) return NOT_FOUND;
    note("handle");
    *card = &mig;
    return SUCCESS;
}

int nvmlDeviceGetName(Card *card, char *into, unsigned length) { return copy(card->name, into, length); }
int nvmlDeviceGetUUID(Card *card, char *into, unsigned length) { return copy(card->uuid, into, length); }

int nvmlDeviceGetMemoryInfo(Card *card, Memory *memory) {
    int code = fault("MEMORY", card);
    memory->total = said("SAY_TOTAL", card, card->total);
    memory->used = said("SAY_USED", card, card->used) + card->reserved;
    memory->free = memory->total - memory->used;
    return code;
}

int nvmlDeviceGetUtilizationRates(Card *card, Rates *rates) {
    rates->gpu = card->busy;
    rates->memory = card->busy / 2;
    return fault("UTILIZATION", card);
}

int nvmlDeviceGetTemperature(Card *card, int sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = (unsigned)said("SAY_TEMPERATURE", card, card->celsius);
    return fault("TEMPERATURE", card);
}

int nvmlDeviceGetPowerUsage(Card *card, unsigned *milliwatts) {
    *milliwatts = (unsigned)said("SAY_POWER", card, card->power_mw);
    return fault("POWER", card);
}

int nvmlDeviceGetTotalEnergyConsumption(Card *card, u64 *millijoules) {
    *millijoules = card->energy_mj;
    card->energy_mj += 1500; /* so the second reading of a test is 1.5 J after the first */
    return fault("ENERGY", card);
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(Card *card, MemoryV2 *memory) {
    if (memory->version != 0x02000028) return 25;
    memory->total = said("SAY_TOTAL", card, card->total);
    memory->reserved = said("SAY_RESERVED", card, card->reserved);
    memory->used = said("SAY_USED", card, card->used);
    memory->free = memory->total - memory->reserved - memory->used;
    return fault("MEMORY", card);
}

int nvmlDeviceGetComputeRunningProcesses_v3(Card *card, unsigned *count, Process *processes) {
    const char *pid = setting("PID", card);
    int code = fault("PROCESSES", card);
    if (code != SUCCESS) return code;
    if (!pid) { *count = 0; return SUCCESS; }
    if (*count < 1 || !processes) { *count = 1; return INSUFFICIENT_SIZE; }
    *count = 1;
    processes[0].pid = strcmp(pid, "self") == 0 ? (unsigned)getpid() : (unsigned)strtoul(pid, NULL, 10);
    processes[0].used = said("SAY_PROCESS_USED", card, card->process_used);
    processes[0].gpu_instance = processes[0].compute_instance = 0xffffffffu;
    return SUCCESS;
}
#endif
