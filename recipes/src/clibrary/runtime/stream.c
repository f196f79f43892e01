/* Stores around the caches, for results that would not stay there until they are read. */
#include "internal.h"
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Copies bytes; whole lines of the target are written around the caches where the processor has an instruction for that. */
void NAME_stream(void *to, const void *from, int64_t bytes)
{
#if defined(__AVX512F__) || defined(__AVX2__)
    char *const target = to;
    const char *const source = from;
    const int64_t rest = (int64_t)(-(uintptr_t)target & 63), head = rest < bytes ? rest : bytes, lines = (bytes - head) / 64;
    memcpy(target, source, (size_t)head);
    for (int64_t n = 0; n < lines; ++n) {
        char *const at = target + head + n * 64;
        const char *const line = source + head + n * 64;
#if defined(__AVX512F__)
        _mm512_stream_si512((void *)at, _mm512_loadu_si512(line));
#else
        /* Both halves of a line one after the other, so that it leaves the write-combining buffer whole. */
        const __m256i first = _mm256_loadu_si256((const __m256i *)line), second = _mm256_loadu_si256((const __m256i *)(line + 32));
        _mm256_stream_si256((__m256i *)at, first);
        _mm256_stream_si256((__m256i *)(at + 32), second);
#endif
    }
    const int64_t done = head + lines * 64;
    memcpy(target + done, source + done, (size_t)(bytes - done));
#else
    memcpy(to, from, (size_t)bytes);
#endif
}

/* Makes streamed stores visible before other workers see that the kernel is done. */
void NAME_fence(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}
