/* What is in a library beside the kernels: their calls from Python, its sources' hash, and the processor's level.

A call takes the arguments from CPython's and NumPy's objects, in a tenth of the time that ctypes and Python code need.
No header or name of CPython is used, so that builds need none and one library serves all versions: `native.py` hands
over the addresses of functions of the stable interface and the size of an object's head, after it compared what is read
here with what Python says. */
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
enum { WORDS = 64 };
enum { I64 = -1, U64 = -2, F64 = -3 }; /* numbers, where an array has its dimensions */

typedef struct { /* of ndarray, behind its head */
    char *data;
    int dimensions;
    const intptr_t *shape, *strides;
    void *base, *dtype;
    int flags;
} Array;

typedef struct {
    int64_t kind;     /* dimensions, or a kind of number */
    int64_t types[3]; /* of a number; of an array its dtype and the flags that it must have */
} Rule;

typedef struct {
    int64_t signatures, arguments, returns;
    int64_t rules[]; /* for each signature: its function, and the rule of each argument */
} Table;

static struct {
    int64_t (*as_i64)(void *);
    uint64_t (*as_u64)(void *);
    double (*as_f64)(void *);
    void *(*index)(void *), *(*raised)(void), *(*from_i64)(int64_t), *(*release)(void);
    void (*clear)(void), (*acquire)(void *), (*keep)(void *), (*drop)(void *);
    void *(*bytes)(const char *, intptr_t), *(*text)(const char *, intptr_t, const char *), *(*list)(intptr_t);
    int (*set)(void *, intptr_t, void *);
    void *none, *refused, *array;
    int64_t head;
} python;

EXPORT void feedmill_python(const void *const *given) { __builtin_memcpy(&python, given, sizeof python); }

static int number(char *object, const Rule *rule, int64_t *word) {
    int64_t type = *(int64_t *)(object + python.head - 8);
    if (type != rule->types[0] && type != rule->types[1] && type != rule->types[2]) return 0;
    if (rule->kind == F64) {
        double value = python.as_f64(object);
        __builtin_memcpy(word, &value, 8);
    } else {
        void *whole = python.index(object);
        if (whole) {
            *word = rule->kind == I64 ? python.as_i64(whole) : (int64_t)python.as_u64(whole);
            python.drop(whole);
        }
    }
    if (!python.raised()) return 1;
    python.clear();
    return 0;
}

static int64_t *taken(char *object, const Rule *rule, int64_t *word) {
    if (rule->kind < 0) return number(object, rule, word) ? word + 1 : 0;
    if (*(void **)(object + python.head - 8) != python.array) return 0;
    const Array *array = (const Array *)(object + python.head);
    if (array->dimensions != rule->kind || (int64_t)array->dtype != rule->types[0]) return 0;
    if ((array->flags & rule->types[1]) != rule->types[1]) return 0;
    *word++ = (int64_t)array->data;
    for (int k = 0; k < array->dimensions; k++) *word++ = array->shape[k];
    return word;
}

/* Call a kernel, as a C function of Python with METH_FASTCALL whose `self` is an array with a Table. It returns
NotImplemented, and did nothing, for arguments that need Python code: to be copied, or for a message. */
EXPORT void *feedmill_call(char *self, char *const *args, intptr_t count) {
    const Table *table = (const Table *)((const Array *)(self + python.head))->data;
    const int64_t *at = table->rules;
    int64_t words[WORDS];
    for (int64_t n = 0; count == table->arguments && n < table->signatures; n++, at += 1 + 4 * count) {
        const Rule *rules = (const Rule *)(at + 1);
        int64_t *word = words;
        for (intptr_t k = 0; k < count && word; k++) word = taken(args[k], rules + k, word);
        if (!word) continue;
        void *state = python.release();
        int64_t result = ((int64_t(*)(const int64_t *))at[0])(words);
        python.acquire(state);
        if (table->returns) return python.from_i64(result);
        python.keep(python.none);
        return python.none;
    }
    python.keep(python.refused);
    return python.refused;
}

/* Return a list of the objects that pieces of memory hold, as a function of two arrays: addresses and lengths. The table
says which: it `returns` text, or bytes, which are not filled if the address is 0. */
EXPORT void *feedmill_objects(char *self, char *const *args, intptr_t count) {
    const Table *table = (const Table *)((const Array *)(self + python.head))->data;
    const Rule *rules = (const Rule *)(table->rules + 1);
    int64_t words[4], *word = count == 2 ? words : 0;
    for (int k = 0; k < 2 && word; k++) word = taken(args[k], rules + k, word);
    if (!word || words[1] != words[3]) {
        python.keep(python.refused);
        return python.refused;
    }
    const char *const *addresses = (const char *const *)words[0];
    const int64_t *lengths = (const int64_t *)words[2];
    void *list = python.list(words[1]);
    for (int64_t i = 0; list && i < words[1]; i++) {
        void *object = table->returns ? python.text(addresses[i], lengths[i], "surrogateescape")
                                      : python.bytes(addresses[i], lengths[i]);
        if (object) {
            python.set(list, i, object);
        } else {
            python.drop(list);
            return 0;
        }
    }
    return list;
}

EXPORT const char feedmill_sources[] = FEEDMILL_SOURCES;

#if defined(__x86_64__)
#include <cpuid.h>
EXPORT int feedmill_has_v3(void) { /* as the x86-64 psABI defines it */
    const unsigned basic = 1u << 0 | 1u << 9 | 1u << 12 | 1u << 19 | 1u << 20 | 1u << 22 | 1u << 23 | 7u << 27;
    const unsigned more = 1u << 3 | 1u << 5 | 1u << 8;
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & basic) != basic) return 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); /* whether the system saves the wide registers */
    if ((low & 6) != 6) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & more) != more) return 0;
    return __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & 1u << 5);
}
#endif
