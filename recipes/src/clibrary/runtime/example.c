/* Runs steps of NAME: `example [THREADS [STEPS [FOLDER]]]`.
 *
 * With a folder, tensors are read from FOLDER/TENSOR.bin, each in the order of its dims, and results are written there; otherwise tensors are
 * filled with small numbers. The program prints the sum of each result and the time of the fastest step. */
#define _POSIX_C_SOURCE 200809L
#include "NAME.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void check(int error, const char *what)
{
    if (error == CAPS_OK) return;
    fprintf(stderr, "%s: %s\n", what, NAME_strerror(error));
    exit(1);
}

static void *room(size_t bytes)
{
    void *found = 0;
    /* A line more than there is: see NAME.h. */
    if (posix_memalign(&found, 64, bytes + 64) != 0) check(CAPS_ERROR_MEMORY, "memory");
    memset(found, 0, bytes + 64);
    return found;
}

static size_t elements(const NAME_tensor *tensor)
{
    size_t all = 1;
    for (int32_t d = 0; d < tensor->rank; ++d) all *= (size_t)tensor->shape[d];
    return all;
}

static int is_given(const NAME_tensor *tensor) { return strcmp(tensor->role, "input") == 0 || strcmp(tensor->role, "parameter") == 0; }

/* Small numbers; 0 for whole ones, which may be positions. */
static void fill(const NAME_tensor *tensor, void *values)
{
    for (size_t n = 0; n < elements(tensor); ++n) {
        const double value = tensor->initial ? *tensor->initial : ((double)((n * 7 + 3) % 13) - 6) / 16;
        if (strcmp(tensor->dtype, "f32") == 0) ((float *)values)[n] = (float)value;
        if (strcmp(tensor->dtype, "f64") == 0) ((double *)values)[n] = value;
    }
}

static double sum(const NAME_tensor *tensor, const void *values)
{
    double all = 0;
    for (size_t n = 0; n < elements(tensor); ++n) {
        if (strcmp(tensor->dtype, "f32") == 0) all += ((const float *)values)[n];
        if (strcmp(tensor->dtype, "f64") == 0) all += ((const double *)values)[n];
    }
    return all;
}

static FILE *file(const char *folder, const NAME_tensor *tensor, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s.bin", folder, tensor->name);
    FILE *const opened = fopen(path, mode);
    if (!opened) perror(path), exit(1);
    return opened;
}

int main(int count, char **words)
{
    const int threads = count > 1 ? atoi(words[1]) : 1, steps = count > 2 ? atoi(words[2]) : 3;
    const char *const folder = count > 3 ? words[3] : 0;
    NAME_context *context = 0;
    check(NAME_create(&context, threads, 0, 0), "NAME_create");
    void *memories[CAPS_MEMORY_COUNT];
    for (int32_t n = 0; n < CAPS_MEMORY_COUNT; ++n) memories[n] = room((size_t)NAME_memory_at(n)->bytes);
    for (int32_t n = 0; n < NAME_tensor_count(); ++n) {
        const NAME_tensor *const tensor = NAME_tensor_at(n);
        if (!is_given(tensor)) continue;
        const size_t size = (size_t)tensor->element_bytes;
        void *const values = room(elements(tensor) * size);
        if (folder) {
            FILE *const from = file(folder, tensor, "rb");
            if (fread(values, size, elements(tensor), from) != elements(tensor)) fprintf(stderr, "%s.bin is too short\n", tensor->name), exit(1);
            fclose(from);
        } else fill(tensor, values);
        check(NAME_pack(n, values, memories[tensor->memory]), tensor->name);
        free(values);
    }
    double fastest = 1e300;
    for (int step = 0; step < steps; ++step) {
        struct timespec began, ended;
        clock_gettime(CLOCK_MONOTONIC, &began);
        check(NAME_step(context, memories, 1, (uint64_t)step, 0), "NAME_step");
        clock_gettime(CLOCK_MONOTONIC, &ended);
        const double ms = (double)(ended.tv_sec - began.tv_sec) * 1e3 + (double)(ended.tv_nsec - began.tv_nsec) * 1e-6;
        fastest = ms < fastest ? ms : fastest;
    }
    for (int32_t n = 0; n < NAME_tensor_count(); ++n) {
        const NAME_tensor *const tensor = NAME_tensor_at(n);
        if (is_given(tensor)) continue;
        void *const values = room(elements(tensor) * (size_t)tensor->element_bytes);
        check(NAME_unpack(n, memories[tensor->memory], values), tensor->name);
        printf("%s: sum %.9g\n", tensor->name, sum(tensor, values));
        if (folder) {
            FILE *const to = file(folder, tensor, "wb");
            if (fwrite(values, (size_t)tensor->element_bytes, elements(tensor), to) != elements(tensor)) perror(tensor->name), exit(1);
            fclose(to);
        }
        free(values);
    }
    printf("fastest step: %.6f ms\n", fastest);
    for (int32_t n = 0; n < CAPS_MEMORY_COUNT; ++n) free(memories[n]);
    NAME_destroy(context);
    return 0;
}
