/* The record codec in C. `python_codec.py` is its reference and its documentation: both have the same names, arguments,
 * results and kinds of errors.
 *
 * Three rules make this code safe against any bytes and any caller:
 *   1. Parsing (`parse_record`) calls no Python and allocates no memory. Before each read, the number of remaining
 *      bytes is compared with the number of needed bytes, in 64 bits. Before memory is allocated for a number of
 *      items, that number is compared with the number that the remaining bytes can encode.
 *   2. Operations that may run other Python code (reading arguments, buffers and sequences) happen before the first
 *      byte is written, because such code may call a method of the same object.
 *   3. If a method fails, its object is as before the call. Only `RecordColumns.finish` empties its object in that
 *      case, too.
 *
 * The file uses the limited API of CPython 3.11, so one build works with every later version.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <structmember.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

_Static_assert(sizeof(Py_ssize_t) == 8, "sizes are computed in 64 bits; other platforms use the Python codec");

#define LIKELY(condition) __builtin_expect(!!(condition), 1)

enum { BATCH_HEADER_BYTES = 61, RECORD_BYTES_MIN = 7, HEADER_BYTES_MIN = 2, HEADERS_ON_STACK = 8 };

typedef struct {
    PyObject *corrupt_batch; /* errors.CorruptBatch */
    PyTypeObject *record_type;
} ModuleState;

/* Arguments */

static int check_arity(const char *name, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most) {
    if (count >= least && count <= most) return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd to %zd arguments, not %zd", name, least, most, count);
    return -1;
}

static int as_int64(PyObject *object, const char *what, int64_t *out) {
    *out = PyLong_AsLongLong(object);
    if (*out != -1 || !PyErr_Occurred()) return 0;
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%s %R has more than 64 bits", what, object);
    }
    return -1;
}

static int as_int32(PyObject *object, const char *what, int32_t *out) {
    int64_t wide;
    if (as_int64(object, what, &wide) < 0) return -1;
    if (wide < INT32_MIN || wide > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%s %R has more than 32 bits", what, object);
        return -1;
    }
    *out = (int32_t)wide;
    return 0;
}

/* The bytes of an argument: a `bytes` object, which the caller keeps alive, or a buffer that must be released. */
typedef struct {
    const uint8_t *data;
    int64_t length; /* -1: null */
    Py_buffer view;
    int has_view;
} Bytes;

static int bytes_open(PyObject *object, const char *what, Bytes *out) {
    out->has_view = 0;
    if (object == Py_None) {
        out->data = NULL;
        out->length = -1;
        return 0;
    }
    if (PyBytes_Check(object)) {
        out->data = (const uint8_t *)PyBytes_AsString(object);
        out->length = PyBytes_Size(object);
        return 0;
    }
    if (!PyByteArray_Check(object) && !PyMemoryView_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s is %R, not bytes", what, Py_TYPE(object));
        return -1;
    }
    if (PyObject_GetBuffer(object, &out->view, PyBUF_SIMPLE) < 0) return -1;
    out->data = out->view.buf;
    out->length = out->view.len;
    out->has_view = 1;
    return 0;
}

static void bytes_close(Bytes *bytes) {
    if (bytes->has_view) PyBuffer_Release(&bytes->view);
    bytes->has_view = 0;
}

/* CRC32C */

#define CRC32C_POLYNOMIAL 0x82F63B78u
enum { CRC_LONG_BLOCK = 4096, CRC_SHORT_BLOCK = 256 };

static uint32_t crc_tables[8][256]; /* for computing 8 bytes at a time in software */

static uint32_t crc_software(uint32_t crc, const uint8_t *data, size_t length) {
    while (length >= 8) {
        uint64_t word = 0;
        for (int i = 0; i < 8; i++) word |= (uint64_t)data[i] << (8 * i);
        word ^= crc;
        crc = 0;
        for (int i = 0; i < 8; i++) crc ^= crc_tables[7 - i][(word >> (8 * i)) & 0xFF];
        data += 8;
        length -= 8;
    }
    while (length--) crc = (crc >> 8) ^ crc_tables[0][(crc ^ *data++) & 0xFF];
    return crc;
}

static void crc_init_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        crc_tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int i = 1; i < 8; i++)
            crc_tables[i][byte] = (crc_tables[i - 1][byte] >> 8) ^ crc_tables[0][crc_tables[i - 1][byte] & 0xFF];
}

#if defined(__x86_64__)
/* The CRC instruction takes three cycles, but a new one can start in each cycle. So the CRCs of three blocks are
 * computed in parallel and then combined. They can be combined because a CRC is linear: appending a block of zeros
 * changes a CRC by a linear function, which is stored as a table. */
static uint32_t crc_long_shift[4][256], crc_short_shift[4][256];
static int crc_has_instruction;

static void crc_init_shift(uint32_t shift[4][256], size_t zeros) {
    uint32_t bits[32]; /* the result for each single bit of a CRC */
    for (int bit = 0; bit < 32; bit++) {
        uint32_t crc = (uint32_t)1 << bit;
        for (size_t i = 0; i < zeros; i++) crc = (crc >> 8) ^ crc_tables[0][crc & 0xFF];
        bits[bit] = crc;
    }
    for (int place = 0; place < 4; place++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = 0;
            for (int bit = 0; bit < 8; bit++)
                if (byte >> bit & 1) crc ^= bits[8 * place + bit];
            shift[place][byte] = crc;
        }
}

static inline uint64_t crc_moved(uint32_t shift[4][256], uint64_t crc) {
    return shift[0][crc & 0xFF] ^ shift[1][crc >> 8 & 0xFF] ^ shift[2][crc >> 16 & 0xFF] ^ shift[3][crc >> 24 & 0xFF];
}

static inline uint64_t load64(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

__attribute__((target("sse4.2"))) static uint64_t crc_triples(uint64_t crc, const uint8_t **data, size_t *length,
                                                               size_t block, uint32_t shift[4][256]) {
    while (*length >= 3 * block) {
        uint64_t second = 0, third = 0;
        const uint8_t *at = *data;
        for (size_t i = 0; i < block; i += 8) {
            crc = _mm_crc32_u64(crc, load64(at + i));
            second = _mm_crc32_u64(second, load64(at + block + i));
            third = _mm_crc32_u64(third, load64(at + 2 * block + i));
        }
        crc = crc_moved(shift, crc) ^ second;
        crc = crc_moved(shift, crc) ^ third;
        *data += 3 * block;
        *length -= 3 * block;
    }
    return crc;
}

__attribute__((target("sse4.2"))) static uint32_t crc_hardware(uint32_t start, const uint8_t *data, size_t length) {
    uint64_t crc = start;
    crc = crc_triples(crc, &data, &length, CRC_LONG_BLOCK, crc_long_shift);
    crc = crc_triples(crc, &data, &length, CRC_SHORT_BLOCK, crc_short_shift);
    for (; length >= 8; length -= 8, data += 8) crc = _mm_crc32_u64(crc, load64(data));
    for (; length; length--) crc = _mm_crc32_u8((uint32_t)crc, *data++);
    return (uint32_t)crc;
}
#endif

static void crc_init(void) {
    crc_init_tables();
#if defined(__x86_64__)
    crc_init_shift(crc_long_shift, CRC_LONG_BLOCK);
    crc_init_shift(crc_short_shift, CRC_SHORT_BLOCK);
    __builtin_cpu_init();
    crc_has_instruction = __builtin_cpu_supports("sse4.2");
#endif
}

static uint32_t crc32c_of(uint32_t value, const uint8_t *data, size_t length) {
#if defined(__x86_64__)
    if (crc_has_instruction) return ~crc_hardware(~value, data, length);
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
    uint32_t crc = ~value;
    for (; length >= 8; length -= 8, data += 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = __crc32cd(crc, word);
    }
    for (; length; length--) crc = __crc32cb(crc, *data++);
    return ~crc;
#endif
    return ~crc_software(~value, data, length);
}

static PyObject *codec_crc32c(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    int64_t value = 0;
    Py_buffer view;
    if (check_arity("crc32c", count, 1, 2) < 0) return NULL;
    if (count > 1 && as_int64(args[1], "value", &value) < 0) return NULL;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0) return NULL;
    uint32_t crc = crc32c_of((uint32_t)value, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

/* Lines */

static PyObject *codec_lines(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    int64_t rows;
    Py_buffer data, offsets;
    if (check_arity("lines", count, 3, 3) < 0) return NULL;
    if (as_int64(args[2], "rows", &rows) < 0) return NULL;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    if (PyObject_GetBuffer(args[1], &offsets, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&data);
        return NULL;
    }
    PyObject *lines = NULL;
    int32_t start = 0, end = 0;
    if (rows < 0 || rows >= offsets.len / 4) {
        PyErr_SetString(PyExc_ValueError, "rows must be fewer than there are offsets, and not negative");
        goto done;
    }
    for (int64_t row = 0; row <= rows; row++, start = end) {
        memcpy(&end, (const char *)offsets.buf + 4 * row, 4);
        if (end < start || end > data.len || (row == 0 && end != 0)) {
            PyErr_SetString(PyExc_ValueError, "offsets must begin at 0, increase, and end in the data");
            goto done;
        }
    }
    lines = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(end + rows));
    if (lines == NULL) goto done;
    char *out = PyBytes_AsString(lines);
    start = 0;
    for (int64_t row = 1; row <= rows; row++, start = end) {
        memcpy(&end, (const char *)offsets.buf + 4 * row, 4);
        memcpy(out, (const char *)data.buf + start, (size_t)(end - start));
        out += end - start;
        *out++ = '\n';
    }
done:
    PyBuffer_Release(&data);
    PyBuffer_Release(&offsets);
    return lines;
}

/* Murmur2 */

static int32_t murmur2_of(const uint8_t *data, uint32_t length) {
    const uint32_t multiplier = 0x5BD1E995u;
    uint32_t hash = 0x9747B28Cu ^ length;
    uint32_t left = length;
    for (; left >= 4; left -= 4, data += 4) {
        uint32_t word = data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        word *= multiplier;
        word ^= word >> 24;
        word *= multiplier;
        hash = hash * multiplier ^ word;
    }
    if (left) {
        for (uint32_t i = 0; i < left; i++) hash ^= (uint32_t)data[i] << (8 * i);
        hash *= multiplier;
    }
    hash ^= hash >> 13;
    hash *= multiplier;
    hash ^= hash >> 15;
    return (int32_t)hash;
}

static PyObject *codec_murmur2(PyObject *module, PyObject *data) {
    (void)module;
    Py_buffer view;
    if (PyBytes_Check(data) && PyBytes_Size(data) <= INT32_MAX)
        return PyLong_FromLong(murmur2_of((const uint8_t *)PyBytes_AsString(data), (uint32_t)PyBytes_Size(data)));
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) return NULL;
    if (view.len > INT32_MAX) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "a key has more than 2 GiB");
        return NULL;
    }
    int32_t hash = murmur2_of(view.buf, (uint32_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromLong(hash);
}

/* Varints */

static inline uint64_t zigzag(int64_t value) { return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63); }

static inline int64_t unzigzag(uint64_t raw) { return (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1); }

static inline size_t varint_size(int64_t value) {
    uint64_t raw = zigzag(value);
    return raw < 0x80 ? 1 : (size_t)(70 - __builtin_clzll(raw)) / 7;
}

static inline uint8_t *write_varint(uint8_t *out, int64_t value) {
    uint64_t raw = zigzag(value);
    while (raw > 0x7F) {
        *out++ = (uint8_t)(raw | 0x80);
        raw >>= 7;
    }
    *out++ = (uint8_t)raw;
    return out;
}

static inline uint8_t *write_bytes(uint8_t *out, const Bytes *bytes) {
    out = write_varint(out, bytes->length);
    if (bytes->length > 0) {
        memcpy(out, bytes->data, (size_t)bytes->length);
        out += bytes->length;
    }
    return out;
}

static inline int64_t bytes_size(const Bytes *bytes) {
    return (int64_t)varint_size(bytes->length) + (bytes->length > 0 ? bytes->length : 0);
}

/* Reads one varint of at most `bits` (32 or 64) bits and advances `*at`. Returns 0 if the varint is malformed. */
static inline int read_number(const uint8_t **at, const uint8_t *end, int bits, int64_t *out) {
    const uint8_t *from = *at;
    if (LIKELY(from < end && *from < 0x80)) {
        *out = unzigzag(*from);
        *at = from + 1;
        return 1;
    }
    uint64_t raw = 0;
    for (int shift = 0; shift < bits && from < end; shift += 7) {
        uint8_t byte = *from++;
        if (shift + 7 > bits && byte >> (bits - shift)) return 0; /* too long, or too large */
        raw |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *out = unzigzag(raw);
            *at = from;
            return 1;
        }
    }
    return 0;
}

/* Parsing one record */

typedef struct {
    const uint8_t *data;
    int64_t length; /* -1: null */
} Span;

typedef struct {
    int64_t timestamp_delta_ms;
    int64_t offset_delta;
    Span key, value;
    int64_t header_count;
    const uint8_t *headers; /* the headers are checked, so read_span cannot fail for them */
    const uint8_t *end;
} Parsed;

typedef struct {
    const char *what; /* a format for the following two numbers (%lld) */
    int64_t first, second;
    Py_ssize_t position;
} Fault;

static inline int read_span(const uint8_t **at, const uint8_t *end, Span *out) {
    if (!read_number(at, end, 32, &out->length)) return 0;
    if (out->length < -1 || out->length > end - *at) return 0;
    out->data = *at;
    if (out->length > 0) *at += out->length;
    return 1;
}

static int fail(Fault *fault, const char *what, int64_t first, int64_t second) {
    fault->what = what;
    fault->first = first;
    fault->second = second;
    return 0;
}

/* Parses and checks the record at `at`; the records of its batch end at `end`. Returns 0 and sets `fault` if the record
 * is damaged. */
static int parse_record(const uint8_t *at, const uint8_t *end, Parsed *out, Fault *fault) {
    int64_t length;
    if (!read_number(&at, end, 32, &length)) return fail(fault, "no record length (%lld bytes left)", end - at, 0);
    if (length < RECORD_BYTES_MIN - 1 || length > end - at)
        return fail(fault, "record of %lld bytes, %lld are left", length, end - at);
    end = at + length;
    out->end = end;
    at += 1; /* attributes */
    if (!read_number(&at, end, 64, &out->timestamp_delta_ms)) return fail(fault, "malformed timestamp delta", 0, 0);
    if (!read_number(&at, end, 32, &out->offset_delta)) return fail(fault, "malformed offset delta", 0, 0);
    if (!read_span(&at, end, &out->key)) return fail(fault, "malformed key (%lld bytes left)", end - at, 0);
    if (!read_span(&at, end, &out->value)) return fail(fault, "malformed value (%lld bytes left)", end - at, 0);
    if (!read_number(&at, end, 32, &out->header_count)) return fail(fault, "no header count", 0, 0);
    if (out->header_count < 0 || out->header_count > (end - at) / HEADER_BYTES_MIN)
        return fail(fault, "%lld headers in %lld bytes", out->header_count, end - at);
    out->headers = at;
    for (int64_t i = 0; i < out->header_count; i++) {
        Span key, value;
        if (!read_span(&at, end, &key) || key.length < 0 || !read_span(&at, end, &value))
            return fail(fault, "malformed header (%lld bytes left)", end - at, 0);
    }
    if (at != end) return fail(fault, "record with %lld bytes after its headers", end - at, 0);
    return 1;
}

static void raise_fault(ModuleState *state, const Fault *fault) {
    PyObject *what = PyUnicode_FromFormat(fault->what, (long long)fault->first, (long long)fault->second);
    if (what == NULL) return;
    PyErr_Format(state->corrupt_batch, "%U at position %zd of the records", what, fault->position);
    Py_DECREF(what);
}

/* The position in a batch that is being decoded, and the bases to which its deltas are added. */
typedef struct {
    const uint8_t *start, *at, *end;
    int64_t remaining;
    int64_t base_offset, last_offset_delta, offset_delta;
    int64_t base_timestamp_ms, append_time_ms, start_offset;
    int has_append_time;
} Cursor;

static int cursor_init(ModuleState *state, Cursor *cursor, const Py_buffer *view, PyObject *const *args) {
    int32_t record_count, last_offset_delta;
    if (as_int32(args[0], "record count", &record_count) < 0) return -1;
    if (as_int64(args[1], "base offset", &cursor->base_offset) < 0) return -1;
    if (as_int32(args[2], "last offset delta", &last_offset_delta) < 0) return -1;
    if (as_int64(args[3], "base timestamp", &cursor->base_timestamp_ms) < 0) return -1;
    cursor->has_append_time = args[4] != Py_None;
    cursor->append_time_ms = -1;
    if (cursor->has_append_time && as_int64(args[4], "append time", &cursor->append_time_ms) < 0) return -1;
    if (as_int64(args[5], "start offset", &cursor->start_offset) < 0) return -1;
    cursor->start = cursor->at = view->buf;
    cursor->end = cursor->start + view->len;
    cursor->remaining = record_count;
    cursor->last_offset_delta = last_offset_delta;
    cursor->offset_delta = -1;
    if (record_count < 0 || record_count > view->len / RECORD_BYTES_MIN) {
        PyErr_Format(state->corrupt_batch, "the batch claims %i records, which do not fit its %zd bytes",
                     (int)record_count, view->len);
        return -1;
    }
    if (last_offset_delta < 0 || cursor->base_offset < 0 || cursor->base_offset > INT64_MAX - last_offset_delta) {
        PyErr_Format(state->corrupt_batch, "base offset %lld and last offset delta %i are out of range",
                     (long long)cursor->base_offset, (int)last_offset_delta);
        return -1;
    }
    return 0;
}

/* Decodes the next record. If *offset is below the start offset, the caller must skip the record, and *timestamp_ms is
 * not set. Returns 0 and sets the fault if the batch is damaged. */
static inline int cursor_next(Cursor *cursor, Parsed *parsed, int64_t *offset, int64_t *timestamp_ms, Fault *fault) {
    fault->position = cursor->at - cursor->start;
    if (!parse_record(cursor->at, cursor->end, parsed, fault)) return 0;
    if (parsed->offset_delta <= cursor->offset_delta || parsed->offset_delta > cursor->last_offset_delta)
        return fail(fault, "offset delta %lld, the last of the batch is %lld", parsed->offset_delta,
                    cursor->last_offset_delta);
    *offset = cursor->base_offset + parsed->offset_delta;
    cursor->offset_delta = parsed->offset_delta;
    cursor->at = parsed->end;
    cursor->remaining--;
    if (*offset >= cursor->start_offset) {
        if (cursor->has_append_time)
            *timestamp_ms = cursor->append_time_ms;
        else if (__builtin_add_overflow(cursor->base_timestamp_ms, parsed->timestamp_delta_ms, timestamp_ms))
            return fail(fault, "timestamp %lld + %lld has more than 64 bits", cursor->base_timestamp_ms,
                        parsed->timestamp_delta_ms);
    }
    return 1;
}

/* Returns 0 and sets the fault if bytes follow the last record. */
static int cursor_at_end(const Cursor *cursor, Fault *fault) {
    if (cursor->remaining || cursor->at == cursor->end) return 1;
    fault->position = cursor->at - cursor->start;
    return fail(fault, "%lld bytes after the last record", cursor->end - cursor->at, 0);
}

/* Record */

typedef struct {
    PyObject_HEAD
    PyObject *key, *value, *headers, *topic; /* never NULL after the constructor */
    long long timestamp_ms, offset;
    int partition, leader_epoch, timestamp_type;
} RecordObject;

static PyMemberDef record_members[] = {
    {"key", T_OBJECT_EX, offsetof(RecordObject, key), READONLY, "bytes, or None."},
    {"value", T_OBJECT_EX, offsetof(RecordObject, value), READONLY, "bytes, or None."},
    {"headers", T_OBJECT_EX, offsetof(RecordObject, headers), READONLY, "A tuple of (str, bytes or None)."},
    {"timestamp_ms", T_LONGLONG, offsetof(RecordObject, timestamp_ms), READONLY, "-1: none."},
    {"offset", T_LONGLONG, offsetof(RecordObject, offset), READONLY, "-1: not known yet."},
    {"topic", T_OBJECT_EX, offsetof(RecordObject, topic), READONLY, "str, or None."},
    {"partition", T_INT, offsetof(RecordObject, partition), READONLY, "-1: not known."},
    {"leader_epoch", T_INT, offsetof(RecordObject, leader_epoch), READONLY, "-1: not known."},
    {"timestamp_type", T_INT, offsetof(RecordObject, timestamp_type), READONLY, "0 create, 1 log append."},
    {NULL, 0, 0, 0, NULL},
};

/* This check allows only bytes, str and None inside headers. So a Record cannot be part of a reference cycle, and the
 * garbage collector need not visit millions of records. */
static int check_headers(PyObject *headers) {
    if (!PyTuple_Check(headers)) {
        PyErr_SetString(PyExc_TypeError, "headers is not a tuple");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(headers); i++) {
        PyObject *header = PyTuple_GetItem(headers, i);
        if (!PyTuple_Check(header) || PyTuple_Size(header) != 2 || !PyUnicode_Check(PyTuple_GetItem(header, 0)) ||
            (PyTuple_GetItem(header, 1) != Py_None && !PyBytes_Check(PyTuple_GetItem(header, 1)))) {
            PyErr_Format(PyExc_TypeError, "header %zd is %R, not (str, bytes or None)", i, header);
            return -1;
        }
    }
    return 0;
}

static PyObject *record_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"key",   "value",     "headers",      "timestamp_ms",   "offset",
                            "topic", "partition", "leader_epoch", "timestamp_type", NULL};
    PyObject *key = Py_None, *value = Py_None, *headers = NULL, *topic = Py_None;
    long long timestamp_ms = -1, offset = -1;
    int partition = -1, leader_epoch = -1, timestamp_type = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OOOLLOiii:Record", names, &key, &value, &headers, &timestamp_ms,
                                     &offset, &topic, &partition, &leader_epoch, &timestamp_type))
        return NULL;
    if ((key != Py_None && !PyBytes_Check(key)) || (value != Py_None && !PyBytes_Check(value))) {
        PyErr_SetString(PyExc_TypeError, "key and value are bytes or None");
        return NULL;
    }
    if (topic != Py_None && !PyUnicode_Check(topic)) {
        PyErr_SetString(PyExc_TypeError, "topic is str or None");
        return NULL;
    }
    if (headers != NULL && check_headers(headers) < 0) return NULL;
    if (headers == NULL)
        headers = PyTuple_New(0);
    else
        Py_INCREF(headers);
    if (headers == NULL) return NULL;
    RecordObject *record = PyObject_New(RecordObject, type);
    if (record == NULL) {
        Py_DECREF(headers);
        return NULL;
    }
    record->key = Py_NewRef(key);
    record->value = Py_NewRef(value);
    record->headers = headers;
    record->topic = Py_NewRef(topic);
    record->timestamp_ms = timestamp_ms;
    record->offset = offset;
    record->partition = partition;
    record->leader_epoch = leader_epoch;
    record->timestamp_type = timestamp_type;
    return (PyObject *)record;
}

static void record_dealloc(RecordObject *record) {
    PyTypeObject *type = Py_TYPE((PyObject *)record);
    Py_XDECREF(record->key);
    Py_XDECREF(record->value);
    Py_XDECREF(record->headers);
    Py_XDECREF(record->topic);
    PyObject_Free(record);
    Py_DECREF(type);
}

static PyObject *record_repr(RecordObject *record) {
    return PyUnicode_FromFormat(
        "Record(key=%R, value=%R, headers=%R, timestamp_ms=%lld, offset=%lld, topic=%R, partition=%i, "
        "leader_epoch=%i, timestamp_type=%i)",
        record->key, record->value, record->headers, record->timestamp_ms, record->offset, record->topic,
        record->partition, record->leader_epoch, record->timestamp_type);
}

static PyObject *record_richcompare(PyObject *left, PyObject *right, int operation) {
    if ((operation != Py_EQ && operation != Py_NE) || Py_TYPE(left) != Py_TYPE(right)) Py_RETURN_NOTIMPLEMENTED;
    RecordObject *a = (RecordObject *)left, *b = (RecordObject *)right;
    int equal = a->timestamp_ms == b->timestamp_ms && a->offset == b->offset && a->partition == b->partition &&
                a->leader_epoch == b->leader_epoch && a->timestamp_type == b->timestamp_type;
    PyObject *pairs[4][2] = {
        {a->key, b->key}, {a->value, b->value}, {a->headers, b->headers}, {a->topic, b->topic}};
    for (int i = 0; equal && i < 4; i++) {
        equal = PyObject_RichCompareBool(pairs[i][0], pairs[i][1], Py_EQ);
        if (equal < 0) return NULL;
    }
    return PyBool_FromLong(equal == (operation == Py_EQ));
}

static PyType_Slot record_slots[] = {
    {Py_tp_doc, "One record, decoded. See `python_codec.Record`."},
    {Py_tp_new, record_new},
    {Py_tp_dealloc, record_dealloc},
    {Py_tp_members, record_members},
    {Py_tp_repr, record_repr},
    {Py_tp_richcompare, record_richcompare},
    {Py_tp_hash, PyObject_HashNotImplemented},
    {0, NULL},
};
static PyType_Spec record_spec = {
    .name = "odradek_protocol.records._codec.Record",
    .basicsize = sizeof(RecordObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = record_slots,
};

/* RecordBuffer */

typedef struct {
    PyObject_HEAD
    uint8_t *data;
    int64_t used, capacity;
    long long base_timestamp_ms, max_timestamp_ms;
    int size_bytes_max, record_count, last_offset_delta, base_is_given;
} RecordBufferObject;

static PyObject *record_buffer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"size_bytes_max", "base_timestamp_ms", NULL};
    PyObject *size_argument = NULL, *base_argument = Py_None;
    int64_t size_bytes_max = INT32_MAX, base_timestamp_ms = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:RecordBuffer", names, &size_argument, &base_argument))
        return NULL;
    if (size_argument != NULL && as_int64(size_argument, "size_bytes_max", &size_bytes_max) < 0) return NULL;
    if (size_bytes_max < 0 || size_bytes_max > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "size_bytes_max is %lld, not between 0 and %i", (long long)size_bytes_max,
                     INT32_MAX);
        return NULL;
    }
    if (base_argument != Py_None && as_int64(base_argument, "base timestamp", &base_timestamp_ms) < 0) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    RecordBufferObject *buffer = (RecordBufferObject *)allocate(type, 0); /* zeroed */
    if (buffer == NULL) return NULL;
    buffer->size_bytes_max = (int)size_bytes_max;
    buffer->base_is_given = base_argument != Py_None;
    buffer->base_timestamp_ms = base_timestamp_ms;
    buffer->max_timestamp_ms = -1;
    buffer->last_offset_delta = -1;
    return (PyObject *)buffer;
}

static void record_buffer_dealloc(RecordBufferObject *buffer) {
    PyTypeObject *type = Py_TYPE((PyObject *)buffer);
    PyMem_Free(buffer->data);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(buffer);
    Py_DECREF(type);
}

/* One of the record headers that the caller passed, with the objects that keep its bytes alive. */
typedef struct {
    Bytes key, value;
    PyObject *owner; /* owns the bytes of the key if the key's cached UTF-8 cannot be used, otherwise NULL */
    PyObject *pair;
} HeaderSlot;

typedef struct {
    HeaderSlot *slots;
    HeaderSlot on_stack[HEADERS_ON_STACK];
    Py_ssize_t count;
    int64_t size_bytes;
    PyObject *tuple;
} HeaderSlots;

static void headers_close(HeaderSlots *headers) {
    for (Py_ssize_t i = 0; i < headers->count; i++) {
        bytes_close(&headers->slots[i].value);
        Py_XDECREF(headers->slots[i].owner);
        Py_XDECREF(headers->slots[i].pair);
    }
    if (headers->slots != headers->on_stack) PyMem_Free(headers->slots);
    Py_XDECREF(headers->tuple);
}

static int header_key_open(PyObject *key, HeaderSlot *slot) {
    if (!PyUnicode_Check(key)) {
        PyErr_Format(PyExc_TypeError, "a header's key is %R, not str", Py_TYPE(key));
        return -1;
    }
    Py_ssize_t length;
    const char *data = PyUnicode_AsUTF8AndSize(key, &length);
    if (data == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return -1;
        PyErr_Clear();
        slot->owner = PyUnicode_AsEncodedString(key, "utf-8", "surrogateescape");
        if (slot->owner == NULL) return -1;
        data = PyBytes_AsString(slot->owner);
        length = PyBytes_Size(slot->owner);
    }
    slot->key.data = (const uint8_t *)data;
    slot->key.length = length;
    return 0;
}

/* Gets the bytes of all headers. The caller must call `headers_close` afterwards, also after an error. */
static int headers_open(PyObject *sequence, HeaderSlots *headers) {
    headers->slots = headers->on_stack;
    headers->count = 0;
    headers->size_bytes = 0;
    headers->tuple = NULL;
    if (sequence == NULL || sequence == Py_None) return 0;
    headers->tuple = PySequence_Tuple(sequence);
    if (headers->tuple == NULL) return -1;
    Py_ssize_t count = PyTuple_Size(headers->tuple);
    if (count > HEADERS_ON_STACK) {
        HeaderSlot *slots = PyMem_Calloc((size_t)count, sizeof(HeaderSlot));
        if (slots == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        headers->slots = slots;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        HeaderSlot *slot = &headers->slots[i];
        memset(slot, 0, sizeof *slot);
        headers->count = i + 1;
        slot->pair = PySequence_Tuple(PyTuple_GetItem(headers->tuple, i));
        if (slot->pair == NULL) return -1;
        if (PyTuple_Size(slot->pair) != 2) {
            PyErr_Format(PyExc_ValueError, "header %zd has %zd parts, not a key and a value", i,
                         PyTuple_Size(slot->pair));
            return -1;
        }
        if (header_key_open(PyTuple_GetItem(slot->pair, 0), slot) < 0) return -1;
        if (bytes_open(PyTuple_GetItem(slot->pair, 1), "a header's value", &slot->value) < 0) return -1;
        headers->size_bytes += bytes_size(&slot->key) + bytes_size(&slot->value);
    }
    return 0;
}

static int record_buffer_reserve(RecordBufferObject *buffer, int64_t more) {
    if (LIKELY(buffer->capacity - buffer->used >= more)) return 0;
    int64_t capacity = buffer->capacity < 1024 ? 1024 : buffer->capacity * 2;
    if (capacity < buffer->used + more) capacity = buffer->used + more;
    uint8_t *data = PyMem_Realloc(buffer->data, (size_t)capacity);
    if (data == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return 0;
}

/* The caller has already read all its arguments, so no Python code runs in this function. Returns the size of the
 * batch, 0 if the record does not fit, or -1 with an exception set. */
static int64_t record_buffer_write(RecordBufferObject *buffer, const Bytes *key, const Bytes *value,
                                   const HeaderSlots *headers, int64_t timestamp_ms, int64_t offset_delta) {
    int64_t timestamp_delta_ms = 0;
    if (offset_delta == -1) offset_delta = (int64_t)buffer->last_offset_delta + 1;
    if (offset_delta <= buffer->last_offset_delta || offset_delta > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "offset delta %lld is not above %i, the delta of the previous record", (long long)offset_delta,
                     buffer->last_offset_delta);
        return -1;
    }
    if ((buffer->record_count || buffer->base_is_given) &&
        __builtin_sub_overflow(timestamp_ms, buffer->base_timestamp_ms, &timestamp_delta_ms)) {
        PyErr_Format(PyExc_ValueError, "timestamp delta of %lld to %lld has more than 64 bits",
                     (long long)timestamp_ms, (long long)buffer->base_timestamp_ms);
        return -1;
    }
    int64_t body = 1 + (int64_t)varint_size(timestamp_delta_ms) + (int64_t)varint_size(offset_delta) +
                   bytes_size(key) + bytes_size(value) + (int64_t)varint_size(headers->count) + headers->size_bytes;
    int64_t size_bytes = BATCH_HEADER_BYTES + buffer->used + (int64_t)varint_size(body) + body;
    if (size_bytes > (buffer->record_count ? buffer->size_bytes_max : INT32_MAX)) {
        if (buffer->record_count) return 0;
        PyErr_Format(PyExc_ValueError, "a record of %lld bytes is too large for any batch", (long long)body);
        return -1;
    }
    int64_t used = size_bytes - BATCH_HEADER_BYTES;
    if (record_buffer_reserve(buffer, used - buffer->used) < 0) return -1;
    uint8_t *out = buffer->data + buffer->used;
    out = write_varint(out, body);
    *out++ = 0; /* attributes */
    out = write_varint(out, timestamp_delta_ms);
    out = write_varint(out, offset_delta);
    out = write_bytes(out, key);
    out = write_bytes(out, value);
    out = write_varint(out, headers->count);
    for (Py_ssize_t i = 0; i < headers->count; i++) {
        out = write_bytes(out, &headers->slots[i].key);
        out = write_bytes(out, &headers->slots[i].value);
    }
    if (!buffer->record_count && !buffer->base_is_given) buffer->base_timestamp_ms = timestamp_ms;
    if (!buffer->record_count || timestamp_ms > buffer->max_timestamp_ms) buffer->max_timestamp_ms = timestamp_ms;
    buffer->used = used;
    buffer->last_offset_delta = (int)offset_delta;
    buffer->record_count++;
    return size_bytes;
}

static PyObject *record_buffer_append(RecordBufferObject *buffer, PyObject *const *args, Py_ssize_t count) {
    Bytes key = {0}, value = {0};
    HeaderSlots headers;
    int64_t timestamp_ms = -1, offset_delta = -1, size_bytes = -1;
    if (check_arity("append", count, 2, 5) < 0) return NULL;
    if (count > 3 && as_int64(args[3], "timestamp", &timestamp_ms) < 0) return NULL;
    if (count > 4 && as_int64(args[4], "offset delta", &offset_delta) < 0) return NULL;
    if (headers_open(count > 2 ? args[2] : NULL, &headers) == 0 && bytes_open(args[0], "a key", &key) == 0 &&
        bytes_open(args[1], "a value", &value) == 0)
        size_bytes = record_buffer_write(buffer, &key, &value, &headers, timestamp_ms, offset_delta);
    bytes_close(&key);
    bytes_close(&value);
    headers_close(&headers);
    return size_bytes < 0 ? NULL : PyLong_FromLongLong(size_bytes);
}

static PyObject *record_buffer_records(RecordBufferObject *buffer, PyObject *unused) {
    (void)unused;
    return PyBytes_FromStringAndSize((const char *)buffer->data, (Py_ssize_t)buffer->used);
}

static PyObject *record_buffer_size_bytes(RecordBufferObject *buffer, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(BATCH_HEADER_BYTES + buffer->used);
}

static PyMemberDef record_buffer_members[] = {
    {"size_bytes_max", T_INT, offsetof(RecordBufferObject, size_bytes_max), READONLY, NULL},
    {"record_count", T_INT, offsetof(RecordBufferObject, record_count), READONLY, NULL},
    {"last_offset_delta", T_INT, offsetof(RecordBufferObject, last_offset_delta), READONLY, NULL},
    {"base_timestamp_ms", T_LONGLONG, offsetof(RecordBufferObject, base_timestamp_ms), READONLY, NULL},
    {"max_timestamp_ms", T_LONGLONG, offsetof(RecordBufferObject, max_timestamp_ms), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef record_buffer_getset[] = {
    {"size_bytes", (getter)record_buffer_size_bytes, NULL, "The uncompressed size of the batch in bytes, with its header.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef record_buffer_methods[] = {
    {"append", (PyCFunction)(void (*)(void))record_buffer_append, METH_FASTCALL,
     "Add a record. Return the size of the batch in bytes, or 0 if the record does not fit."},
    {"records", (PyCFunction)record_buffer_records, METH_NOARGS, "Return a copy of the encoded records."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot record_buffer_slots[] = {
    {Py_tp_doc, "The encoded records of a batch that is being built. See `python_codec.RecordBuffer`."},
    {Py_tp_new, record_buffer_new},
    {Py_tp_dealloc, record_buffer_dealloc},
    {Py_tp_members, record_buffer_members},
    {Py_tp_getset, record_buffer_getset},
    {Py_tp_methods, record_buffer_methods},
    {0, NULL},
};
static PyType_Spec record_buffer_spec = {
    .name = "odradek_protocol.records._codec.RecordBuffer",
    .basicsize = sizeof(RecordBufferObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = record_buffer_slots,
};

/* RecordReader */

typedef struct {
    PyObject_HEAD
    Py_buffer view;
    Cursor cursor;
    PyObject *topic, *no_headers;
    int partition, leader_epoch, is_open;
} RecordReaderObject;

static PyObject *record_reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"", "", "", "", "", "", "", "", "", "", NULL};
    ModuleState *state = PyType_GetModuleState(type);
    PyObject *data, *numbers[6], *topic = Py_None;
    int partition = -1, leader_epoch = -1;
    numbers[4] = Py_None; /* append time */
    numbers[5] = NULL;    /* start offset */
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO|OOOii:RecordReader", names, &data, &numbers[0], &numbers[1],
                                     &numbers[2], &numbers[3], &numbers[4], &numbers[5], &topic, &partition,
                                     &leader_epoch))
        return NULL;
    if (topic != Py_None && !PyUnicode_Check(topic)) {
        PyErr_SetString(PyExc_TypeError, "topic is str or None");
        return NULL;
    }
    PyObject *zero = PyLong_FromLong(0);
    if (zero == NULL) return NULL;
    if (numbers[5] == NULL) numbers[5] = zero;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    RecordReaderObject *reader = (RecordReaderObject *)allocate(type, 0); /* zeroed */
    if (reader == NULL || PyObject_GetBuffer(data, &reader->view, PyBUF_SIMPLE) < 0) goto failed;
    reader->is_open = 1;
    if (cursor_init(state, &reader->cursor, &reader->view, numbers) < 0) goto failed;
    reader->no_headers = PyTuple_New(0);
    if (reader->no_headers == NULL) goto failed;
    reader->topic = Py_NewRef(topic);
    reader->partition = partition;
    reader->leader_epoch = leader_epoch;
    Py_DECREF(zero);
    return (PyObject *)reader;
failed:
    Py_DECREF(zero);
    Py_XDECREF((PyObject *)reader);
    return NULL;
}

static void record_reader_dealloc(RecordReaderObject *reader) {
    PyTypeObject *type = Py_TYPE((PyObject *)reader);
    if (reader->is_open) PyBuffer_Release(&reader->view);
    Py_XDECREF(reader->topic);
    Py_XDECREF(reader->no_headers);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(reader);
    Py_DECREF(type);
}

static PyObject *object_of_span(const Span *span) {
    if (span->length < 0) return Py_NewRef(Py_None);
    return PyBytes_FromStringAndSize((const char *)span->data, (Py_ssize_t)span->length);
}

static PyObject *object_of_header(const uint8_t **at, const uint8_t *end) {
    Span key, value;
    if (!read_span(at, end, &key) || key.length < 0 || !read_span(at, end, &value)) {
        PyErr_SetString(PyExc_SystemError, "a header changed after it was checked");
        return NULL;
    }
    PyObject *pair = PyTuple_New(2);
    if (pair == NULL) return NULL;
    PyObject *name = PyUnicode_DecodeUTF8((const char *)key.data, (Py_ssize_t)key.length, "surrogateescape");
    if (name == NULL || PyTuple_SetItem(pair, 0, name) < 0) {
        Py_DECREF(pair);
        return NULL;
    }
    PyObject *data = object_of_span(&value);
    if (data == NULL || PyTuple_SetItem(pair, 1, data) < 0) {
        Py_DECREF(pair);
        return NULL;
    }
    return pair;
}

static PyObject *object_of_headers(const Parsed *parsed) {
    PyObject *headers = PyTuple_New((Py_ssize_t)parsed->header_count);
    if (headers == NULL) return NULL;
    const uint8_t *at = parsed->headers;
    for (int64_t i = 0; i < parsed->header_count; i++) {
        PyObject *pair = object_of_header(&at, parsed->end);
        if (pair == NULL || PyTuple_SetItem(headers, (Py_ssize_t)i, pair) < 0) {
            Py_DECREF(headers);
            return NULL;
        }
    }
    return headers;
}

static PyObject *object_of_record(const RecordReaderObject *reader, PyTypeObject *type, const Parsed *parsed,
                                  int64_t offset, int64_t timestamp_ms) {
    RecordObject *record = PyObject_New(RecordObject, type);
    if (record == NULL) return NULL;
    record->key = object_of_span(&parsed->key);
    record->value = object_of_span(&parsed->value);
    record->headers = parsed->header_count ? object_of_headers(parsed) : Py_NewRef(reader->no_headers);
    record->topic = Py_NewRef(reader->topic);
    record->timestamp_ms = timestamp_ms;
    record->offset = offset;
    record->partition = reader->partition;
    record->leader_epoch = reader->leader_epoch;
    record->timestamp_type = reader->cursor.has_append_time;
    if (record->key == NULL || record->value == NULL || record->headers == NULL) {
        Py_DECREF((PyObject *)record);
        return NULL;
    }
    return (PyObject *)record;
}

static PyObject *record_reader_read(RecordReaderObject *reader, PyObject *const *args, Py_ssize_t count) {
    ModuleState *state = PyType_GetModuleState(Py_TYPE((PyObject *)reader));
    int64_t records_max = INT64_MAX;
    if (check_arity("read", count, 0, 1) < 0) return NULL;
    if (count && as_int64(args[0], "records_max", &records_max) < 0) return NULL;
    PyObject *records = PyList_New(0);
    if (records == NULL) return NULL;
    Cursor cursor = reader->cursor;
    Fault fault = {0};
    for (int64_t taken = 0; cursor.remaining && taken < records_max;) {
        Parsed parsed;
        int64_t offset, timestamp_ms;
        if (!cursor_next(&cursor, &parsed, &offset, &timestamp_ms, &fault)) goto damaged;
        if (offset < cursor.start_offset) continue;
        PyObject *record = object_of_record(reader, state->record_type, &parsed, offset, timestamp_ms);
        if (record == NULL || PyList_Append(records, record) < 0) {
            Py_XDECREF(record);
            Py_DECREF(records);
            return NULL;
        }
        Py_DECREF(record);
        taken++;
    }
    if (!cursor_at_end(&cursor, &fault)) goto damaged;
    reader->cursor = cursor;
    return records;
damaged:
    Py_DECREF(records);
    raise_fault(state, &fault);
    return NULL;
}

static PyObject *record_reader_remaining(RecordReaderObject *reader, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(reader->cursor.remaining);
}

static PyGetSetDef record_reader_getset[] = {
    {"remaining", (getter)record_reader_remaining, NULL, "The number of records that are not decoded yet.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef record_reader_methods[] = {
    {"read", (PyCFunction)(void (*)(void))record_reader_read, METH_FASTCALL, "Decode the next records, and return them as a list."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot record_reader_slots[] = {
    {Py_tp_doc, "Decodes the records of one batch. See `python_codec.RecordReader`."},
    {Py_tp_new, record_reader_new},
    {Py_tp_dealloc, record_reader_dealloc},
    {Py_tp_getset, record_reader_getset},
    {Py_tp_methods, record_reader_methods},
    {0, NULL},
};
static PyType_Spec record_reader_spec = {
    .name = "odradek_protocol.records._codec.RecordReader",
    .basicsize = sizeof(RecordReaderObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = record_reader_slots,
};

/* RecordColumns */

enum { COLUMN_KEY = 1, COLUMN_VALUE = 2, COLUMN_HEADERS = 4, COLUMN_OFFSET = 8, COLUMN_TIMESTAMP = 16, COLUMNS = 31 };

/* A bytearray that is written through a pointer. No other object refers to the bytearray until it is returned. */
typedef struct {
    PyObject *array;
    char *data;
    int64_t used, capacity;
} Growing;

static int growing_reserve(Growing *growing, int64_t more) {
    if (growing->array != NULL && growing->capacity - growing->used >= more) return 0;
    int64_t capacity = growing->capacity * 2;
    if (capacity < growing->used + more) capacity = growing->used + more;
    if (growing->array == NULL) {
        growing->array = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)capacity);
        if (growing->array == NULL) return -1;
    } else if (PyByteArray_Resize(growing->array, (Py_ssize_t)capacity) < 0) {
        return -1;
    }
    growing->data = PyByteArray_AsString(growing->array);
    growing->capacity = capacity;
    return 0;
}

static void growing_clear(Growing *growing) {
    Py_CLEAR(growing->array);
    growing->data = NULL;
    growing->used = growing->capacity = 0;
}

/* Returns a bytearray with the written bytes. The caller owns it. */
static PyObject *growing_finish(Growing *growing) {
    if (growing_reserve(growing, 0) < 0 || PyByteArray_Resize(growing->array, (Py_ssize_t)growing->used) < 0)
        return NULL;
    PyObject *array = growing->array;
    growing->array = NULL;
    growing_clear(growing);
    return array;
}

static inline void growing_write(Growing *growing, const void *data, size_t length) {
    memcpy(growing->data + growing->used, data, length);
    growing->used += (int64_t)length;
}

/* A column of Arrow's type `binary`. `validity` is empty until the first null. From then on it has a bit at least for
 * each row up to the last null; `binary_finish` adds the bits of later rows. */
typedef struct {
    Growing validity, offsets, data;
    int64_t rows, nulls;
} Binary;

static int binary_reserve(Binary *binary, int64_t rows, int64_t data_bytes) {
    if (binary->offsets.used == 0) {
        int32_t first = 0;
        if (growing_reserve(&binary->offsets, 4 * (rows + 1)) < 0) return -1;
        growing_write(&binary->offsets, &first, 4);
    }
    if (growing_reserve(&binary->offsets, 4 * rows) < 0) return -1;
    return growing_reserve(&binary->data, data_bytes);
}

/* Clears the bit of the next row in `validity`. The first `validity.used` bytes are initialised; they had all bits 1
 * before nulls were marked. */
static int binary_mark_null(Binary *binary) {
    int64_t bytes = binary->rows / 8 + 1;
    if (bytes > binary->validity.used) {
        if (growing_reserve(&binary->validity, bytes - binary->validity.used) < 0) return -1;
        memset(binary->validity.data + binary->validity.used, 0xFF,
               (size_t)(binary->validity.capacity - binary->validity.used));
        binary->validity.used = binary->validity.capacity;
    }
    binary->validity.data[binary->rows / 8] &= (char)~(1 << (binary->rows % 8));
    binary->nulls++;
    return 0;
}

/* The caller has reserved the memory for the offset and the data. */
static inline int binary_append(Binary *binary, const uint8_t *data, int64_t length) {
    if (length < 0) {
        if (binary_mark_null(binary) < 0) return -1;
    } else {
        growing_write(&binary->data, data, (size_t)length);
    }
    int32_t end = (int32_t)binary->data.used;
    growing_write(&binary->offsets, &end, 4);
    binary->rows++;
    return 0;
}

typedef struct {
    int64_t rows, nulls, data_used;
} BinaryMark;

static BinaryMark binary_mark(const Binary *binary) {
    return (BinaryMark){binary->rows, binary->nulls, binary->data.used};
}

static void binary_rewind(Binary *binary, BinaryMark mark) {
    if (binary->nulls > mark.nulls) { /* set the bits of all rows above the mark to 1 again */
        int64_t byte = mark.rows / 8;
        binary->validity.data[byte] |= (char)(0xFF << (mark.rows % 8));
        memset(binary->validity.data + byte + 1, 0xFF, (size_t)(binary->validity.used - byte - 1));
    }
    binary->rows = mark.rows;
    binary->nulls = mark.nulls;
    binary->data.used = mark.data_used;
    if (binary->offsets.used) binary->offsets.used = 4 * (mark.rows + 1);
}

static void binary_clear(Binary *binary) {
    growing_clear(&binary->validity);
    growing_clear(&binary->offsets);
    growing_clear(&binary->data);
    binary->rows = binary->nulls = 0;
}

/* Returns (null count, validity or None, offsets, data). */
static PyObject *binary_finish(Binary *binary) {
    PyObject *validity = NULL, *offsets = NULL, *data = NULL;
    int64_t nulls = binary->nulls, rows = binary->rows, bytes = (rows + 7) / 8;
    if (binary_reserve(binary, 0, 0) < 0) return NULL;
    if (nulls) {
        int64_t missing = bytes - binary->validity.used;
        if (missing > 0) {
            if (growing_reserve(&binary->validity, missing) < 0) return NULL;
            memset(binary->validity.data + binary->validity.used, 0xFF, (size_t)missing);
        }
        binary->validity.used = bytes;
        if (rows % 8) binary->validity.data[bytes - 1] &= (char)((1 << (rows % 8)) - 1);
        validity = growing_finish(&binary->validity);
    } else {
        validity = Py_NewRef(Py_None);
    }
    if (validity != NULL) offsets = growing_finish(&binary->offsets);
    if (offsets != NULL) data = growing_finish(&binary->data);
    if (data == NULL) {
        Py_XDECREF(validity);
        Py_XDECREF(offsets);
        return NULL;
    }
    binary_clear(binary);
    return Py_BuildValue("(LNNN)", (long long)nulls, validity, offsets, data);
}

typedef struct {
    PyObject_HEAD
    int wanted, timestamp_factor;
    int64_t row_count;
    Binary key, value, header_key, header_value;
    Growing header_offsets, offsets, timestamps;
} RecordColumnsObject;

static PyObject *record_columns_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"", "", NULL};
    int wanted, timestamp_factor = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|i:RecordColumns", names, &wanted, &timestamp_factor))
        return NULL;
    if ((wanted & ~COLUMNS) || (timestamp_factor != 1 && timestamp_factor != 1000)) {
        PyErr_Format(PyExc_ValueError, "columns %i or timestamp factor %i is not valid", wanted, timestamp_factor);
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    RecordColumnsObject *columns = (RecordColumnsObject *)allocate(type, 0); /* zeroed */
    if (columns == NULL) return NULL;
    columns->wanted = wanted;
    columns->timestamp_factor = timestamp_factor;
    return (PyObject *)columns;
}

static void record_columns_clear(RecordColumnsObject *columns) {
    binary_clear(&columns->key);
    binary_clear(&columns->value);
    binary_clear(&columns->header_key);
    binary_clear(&columns->header_value);
    growing_clear(&columns->header_offsets);
    growing_clear(&columns->offsets);
    growing_clear(&columns->timestamps);
    columns->row_count = 0;
}

static void record_columns_dealloc(RecordColumnsObject *columns) {
    PyTypeObject *type = Py_TYPE((PyObject *)columns);
    record_columns_clear(columns);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(columns);
    Py_DECREF(type);
}

static int64_t record_columns_bytes(const RecordColumnsObject *columns) {
    return columns->key.data.used + columns->value.data.used + columns->header_key.data.used +
           columns->header_value.data.used;
}

static int utf8_is_valid(const uint8_t *data, int64_t length) {
    const uint8_t *end = data + length;
    while (data < end) {
        uint8_t lead = *data++;
        if (lead < 0x80) continue;
        int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        if (lead < 0xC2 || lead > 0xF4 || end - data < more) return 0;
        uint8_t second = *data;
        if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
            (lead == 0xF4 && second > 0x8F))
            return 0;
        for (; more; more--)
            if ((*data++ & 0xC0) != 0x80) return 0;
    }
    return 1;
}

/* The caller has reserved three times the length of the key, because U+FFFD has three bytes in UTF-8. */
static int header_key_append(Binary *binary, const Span *key) {
    if (LIKELY(utf8_is_valid(key->data, key->length))) return binary_append(binary, key->data, key->length);
    PyObject *name = PyUnicode_DecodeUTF8((const char *)key->data, (Py_ssize_t)key->length, "replace");
    if (name == NULL) return -1;
    Py_ssize_t length = 0;
    const char *data = PyUnicode_AsUTF8AndSize(name, &length);
    int result = -1;
    if (data != NULL && length <= 3 * key->length) result = binary_append(binary, (const uint8_t *)data, length);
    if (data != NULL && length > 3 * key->length) PyErr_SetString(PyExc_SystemError, "UTF-8 grew beyond U+FFFD");
    Py_DECREF(name);
    return result;
}

static int record_columns_append_headers(RecordColumnsObject *columns, const Parsed *parsed) {
    if (parsed->header_count) {
        int64_t bytes = parsed->end - parsed->headers;
        if (binary_reserve(&columns->header_key, parsed->header_count, 3 * bytes) < 0) return -1;
        if (binary_reserve(&columns->header_value, parsed->header_count, bytes) < 0) return -1;
    }
    const uint8_t *at = parsed->headers;
    for (int64_t i = 0; i < parsed->header_count; i++) {
        Span key, value;
        if (!read_span(&at, parsed->end, &key) || key.length < 0 || !read_span(&at, parsed->end, &value)) {
            PyErr_SetString(PyExc_SystemError, "a header changed after it was checked");
            return -1;
        }
        if (header_key_append(&columns->header_key, &key) < 0) return -1;
        if (binary_append(&columns->header_value, value.data, value.length) < 0) return -1;
    }
    int32_t end = (int32_t)columns->header_key.rows;
    growing_write(&columns->header_offsets, &end, 4);
    return 0;
}

static int record_columns_reserve(RecordColumnsObject *columns, int64_t rows, int64_t bytes) {
    int wanted = columns->wanted;
    if (wanted & COLUMN_KEY && binary_reserve(&columns->key, rows, bytes) < 0) return -1;
    if (wanted & COLUMN_VALUE && binary_reserve(&columns->value, rows, bytes) < 0) return -1;
    if (wanted & COLUMN_HEADERS) {
        if (growing_reserve(&columns->header_offsets, 4 * (rows + 1)) < 0) return -1;
        if (columns->header_offsets.used == 0) {
            int32_t first = 0;
            growing_write(&columns->header_offsets, &first, 4);
        }
    }
    if (wanted & COLUMN_OFFSET && growing_reserve(&columns->offsets, 8 * rows) < 0) return -1;
    if (wanted & COLUMN_TIMESTAMP && growing_reserve(&columns->timestamps, 8 * rows) < 0) return -1;
    return 0;
}

/* Returns 0, or -1 with an exception set, or 1 with the fault set. The caller has reserved the memory. */
static int record_columns_fill(RecordColumnsObject *columns, Cursor *cursor, Fault *fault) {
    int wanted = columns->wanted;
    while (cursor->remaining) {
        Parsed parsed;
        int64_t offset, timestamp;
        if (!cursor_next(cursor, &parsed, &offset, &timestamp, fault)) return 1;
        if (offset < cursor->start_offset) continue;
        if (wanted & COLUMN_KEY && binary_append(&columns->key, parsed.key.data, parsed.key.length) < 0) return -1;
        if (wanted & COLUMN_VALUE && binary_append(&columns->value, parsed.value.data, parsed.value.length) < 0)
            return -1;
        if (wanted & COLUMN_HEADERS && record_columns_append_headers(columns, &parsed) < 0) return -1;
        if (wanted & COLUMN_OFFSET) growing_write(&columns->offsets, &offset, 8);
        if (wanted & COLUMN_TIMESTAMP) {
            if (__builtin_mul_overflow(timestamp, (int64_t)columns->timestamp_factor, &timestamp))
                return 1 + fail(fault, "a timestamp that has more than 64 bits in microseconds", 0, 0);
            growing_write(&columns->timestamps, &timestamp, 8);
        }
        columns->row_count++;
    }
    return cursor_at_end(cursor, fault) ? 0 : 1;
}

static PyObject *record_columns_append(RecordColumnsObject *columns, PyObject *const *args, Py_ssize_t count) {
    ModuleState *state = PyType_GetModuleState(Py_TYPE((PyObject *)columns));
    Py_buffer view;
    Cursor cursor;
    Fault fault = {0};
    int64_t rows_before = 0;
    if (check_arity("append", count, 7, 7) < 0) return NULL;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0) return NULL;
    int status = cursor_init(state, &cursor, &view, args + 1);
    if (status < 0) goto done;
    if (view.len > INT32_MAX || record_columns_bytes(columns) + 3 * (int64_t)view.len > INT32_MAX ||
        columns->row_count + cursor.remaining > INT32_MAX ||
        columns->header_key.rows + view.len / HEADER_BYTES_MIN > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "the columns have more than 2 GiB");
        status = -1;
        goto done;
    }
    rows_before = columns->row_count;
    BinaryMark key = binary_mark(&columns->key), value = binary_mark(&columns->value);
    BinaryMark header_key = binary_mark(&columns->header_key), header_value = binary_mark(&columns->header_value);
    status = record_columns_reserve(columns, cursor.remaining, view.len);
    if (status == 0) status = record_columns_fill(columns, &cursor, &fault);
    if (status != 0) {
        binary_rewind(&columns->key, key);
        binary_rewind(&columns->value, value);
        binary_rewind(&columns->header_key, header_key);
        binary_rewind(&columns->header_value, header_value);
        if (columns->header_offsets.used) columns->header_offsets.used = 4 * (rows_before + 1);
        if (columns->offsets.used) columns->offsets.used = 8 * rows_before;
        if (columns->timestamps.used) columns->timestamps.used = 8 * rows_before;
        columns->row_count = rows_before;
    }
done:
    PyBuffer_Release(&view);
    if (status > 0) raise_fault(state, &fault);
    return status ? NULL : PyLong_FromLongLong(columns->row_count - rows_before);
}

static PyObject *finish_headers(RecordColumnsObject *columns) {
    PyObject *keys = NULL, *values = NULL, *offsets = growing_finish(&columns->header_offsets);
    if (offsets != NULL) keys = binary_finish(&columns->header_key);
    if (keys != NULL) values = binary_finish(&columns->header_value);
    if (values == NULL) {
        Py_XDECREF(offsets);
        Py_XDECREF(keys);
        return NULL;
    }
    return Py_BuildValue("(NNN)", offsets, keys, values);
}

/* Returns (row count, key, value, headers, offset, timestamp). Empties the columns, also after an error. */
static PyObject *record_columns_finish(RecordColumnsObject *columns, PyObject *unused) {
    (void)unused;
    PyObject *parts[5] = {NULL};
    int wanted = columns->wanted, done = 0;
    if (record_columns_reserve(columns, 0, 0) == 0) {
        parts[0] = wanted & COLUMN_KEY ? binary_finish(&columns->key) : Py_NewRef(Py_None);
        if (parts[0]) parts[1] = wanted & COLUMN_VALUE ? binary_finish(&columns->value) : Py_NewRef(Py_None);
        if (parts[1]) parts[2] = wanted & COLUMN_HEADERS ? finish_headers(columns) : Py_NewRef(Py_None);
        if (parts[2]) parts[3] = wanted & COLUMN_OFFSET ? growing_finish(&columns->offsets) : Py_NewRef(Py_None);
        if (parts[3]) parts[4] = wanted & COLUMN_TIMESTAMP ? growing_finish(&columns->timestamps) : Py_NewRef(Py_None);
        done = parts[4] != NULL;
    }
    long long rows = columns->row_count;
    record_columns_clear(columns);
    if (done) return Py_BuildValue("(LNNNNN)", rows, parts[0], parts[1], parts[2], parts[3], parts[4]);
    for (int i = 0; i < 5; i++) Py_XDECREF(parts[i]);
    return NULL;
}

static PyObject *record_columns_row_count(RecordColumnsObject *columns, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(columns->row_count);
}

static PyObject *record_columns_size_bytes(RecordColumnsObject *columns, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(record_columns_bytes(columns));
}

static PyGetSetDef record_columns_getset[] = {
    {"row_count", (getter)record_columns_row_count, NULL, "The number of rows so far.", NULL},
    {"size_bytes", (getter)record_columns_size_bytes, NULL, "The size of all keys, values and headers so far, in bytes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef record_columns_methods[] = {
    {"append", (PyCFunction)(void (*)(void))record_columns_append, METH_FASTCALL, "Add the records of one batch, and return the number of rows added."},
    {"finish", (PyCFunction)record_columns_finish, METH_NOARGS, "Return the columns. This object is empty afterwards."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot record_columns_slots[] = {
    {Py_tp_doc, "The columns of several batches, as buffers in Arrow's format. See `python_codec.RecordColumns`."},
    {Py_tp_new, record_columns_new},
    {Py_tp_dealloc, record_columns_dealloc},
    {Py_tp_getset, record_columns_getset},
    {Py_tp_methods, record_columns_methods},
    {0, NULL},
};
static PyType_Spec record_columns_spec = {
    .name = "odradek_protocol.records._codec.RecordColumns",
    .basicsize = sizeof(RecordColumnsObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = record_columns_slots,
};

/* The requests and responses of Kafka's protocol that arrive thousands of times a second
 *
 * The functions below handle usual and well-formed input. For any other input they return None, and the caller decodes
 * or encodes in Python, where rare forms are handled and errors are raised. So these functions never raise an error
 * about the bytes, and never accept bytes that the Python code refuses. Lengths and counts are compared with the number
 * of remaining bytes before anything is read or allocated. */

enum {
    WIRE_ITEMS_MAX = 10000,       /* api_keys.ITEMS_MAX */
    WIRE_STRING_MAX = 32767,      /* request_decoding.STRING_BYTES_MAX */
    WIRE_TOPIC_NAME_MAX = 249,    /* identity.TOPIC_NAME_BYTES_MAX */
    TOPIC_ID_BYTES = 16,
    PRODUCE_LOWEST = 3,
    PRODUCE_WITH_START = 5,
    PRODUCE_WITH_MESSAGES = 8,
    PRODUCE_FLEXIBLE = 9,
    PRODUCE_WITH_TOPIC_IDS = 13,
    PRODUCE_RESULTS_MAX = 64,
    BATCH_MAGIC = 2,
    BATCH_MAGIC_AT = 16,
    BATCH_CRC_AT = 17,
    BATCH_ATTRIBUTES_AT = 21,
    BATCH_LENGTH_AT = 8,
    BATCH_LENGTH_PREFIX = 12,
    BATCH_UNUSUAL = 0x37, /* compressed, in a transaction, a control batch */
};

typedef struct {
    const uint8_t *at, *end;
} Wire;

static inline int64_t wire_left(const Wire *wire) { return wire->end - wire->at; }

static inline uint64_t load_big(const uint8_t *data, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value = value << 8 | data[i];
    return value;
}

static inline uint8_t *store_big(uint8_t *out, uint64_t value, int bytes) {
    for (int i = bytes; i--;) *out++ = (uint8_t)(value >> (8 * i));
    return out;
}

static inline int wire_int16(Wire *wire, int64_t *out) {
    if (wire_left(wire) < 2) return 0;
    *out = (int16_t)load_big(wire->at, 2);
    wire->at += 2;
    return 1;
}

static inline int wire_int32(Wire *wire, int64_t *out) {
    if (wire_left(wire) < 4) return 0;
    *out = (int32_t)load_big(wire->at, 4);
    wire->at += 4;
    return 1;
}

static inline int wire_uvarint(Wire *wire, int64_t *out) {
    uint64_t value = 0;
    for (int shift = 0; shift < 35 && wire->at < wire->end; shift += 7) {
        uint8_t byte = *wire->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *out = (int64_t)value;
            return value <= UINT32_MAX;
        }
    }
    return 0;
}

/* Skips an empty list of tagged fields, and returns 1. Returns 0 if there are tagged fields or no byte remains. */
static inline int wire_no_tags(Wire *wire) { return wire->at < wire->end && *wire->at++ == 0; }

/* Returns a str of `length` bytes, or NULL if the bytes are unusual. An exception is set only if memory is short. */
static PyObject *wire_text(Wire *wire, int64_t length) {
    if (length < 0 || length > wire_left(wire)) return NULL;
    PyObject *text = PyUnicode_DecodeUTF8((const char *)wire->at, (Py_ssize_t)length, NULL);
    if (text == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
    wire->at += length;
    return text;
}

/* Returns None, so that the caller continues in Python, or NULL if an exception is set. */
static PyObject *unusual(void) { return PyErr_Occurred() ? NULL : Py_NewRef(Py_None); }

static PyObject *codec_usual_header(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Py_buffer view;
    if (check_arity("usual_header", count, 2, 2) < 0) return NULL;
    if (!PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "the table of versions is not bytes");
        return NULL;
    }
    const uint8_t *table = (const uint8_t *)PyBytes_AsString(args[1]);
    Py_ssize_t table_bytes = PyBytes_Size(args[1]);
    if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) < 0) return NULL;
    Wire wire = {view.buf, (const uint8_t *)view.buf + view.len};
    int64_t key, version, correlation_id, length;
    PyObject *client_id = NULL, *header = NULL;
    if (wire_int16(&wire, &key) && wire_int16(&wire, &version) && wire_int32(&wire, &correlation_id) &&
        wire_int16(&wire, &length) && key >= 0 && 2 * key + 1 < table_bytes)
        client_id = length == -1 ? Py_NewRef(Py_None) : wire_text(&wire, length);
    if (client_id != NULL && (version < table[2 * key] || version > table[2 * key + 1] || wire_no_tags(&wire)))
        header = Py_BuildValue("(LLLOn)", (long long)key, (long long)version, (long long)correlation_id, client_id,
                               (Py_ssize_t)(wire.at - (const uint8_t *)view.buf));
    Py_XDECREF(client_id);
    PyBuffer_Release(&view);
    return header != NULL ? header : unusual();
}

/* Produce */

static PyObject *produce_partition(Wire *wire, PyObject *body, const uint8_t *begin, int is_flexible) {
    int64_t index, size;
    if (!wire_int32(wire, &index)) return NULL;
    if (is_flexible ? !wire_uvarint(wire, &size) : !wire_int32(wire, &size)) return NULL;
    size -= is_flexible;
    PyObject *records;
    if (size == -1) {
        records = Py_NewRef(Py_None);
    } else {
        if (size < 0 || size > wire_left(wire)) return NULL;
        Py_ssize_t from = wire->at - begin;
        records = PySequence_GetSlice(body, from, from + (Py_ssize_t)size);
        wire->at += size;
    }
    if (records == NULL) return NULL;
    if (is_flexible && !wire_no_tags(wire)) {
        Py_DECREF(records);
        return NULL;
    }
    return Py_BuildValue("(LN)", (long long)index, records);
}

static PyObject *produce_topic(Wire *wire, int64_t version, PyObject *body, const uint8_t *begin, int64_t *items_left) {
    int is_flexible = version >= PRODUCE_FLEXIBLE;
    int64_t length, count = 0;
    static const uint8_t no_id[TOPIC_ID_BYTES];
    const uint8_t *id = no_id;
    PyObject *name;
    if (version >= PRODUCE_WITH_TOPIC_IDS) {
        if (wire_left(wire) < TOPIC_ID_BYTES) return NULL;
        id = wire->at;
        wire->at += TOPIC_ID_BYTES;
        name = Py_NewRef(Py_None);
    } else {
        if (is_flexible ? !wire_uvarint(wire, &length) : !wire_int16(wire, &length)) return NULL;
        length -= is_flexible;
        if (length > WIRE_TOPIC_NAME_MAX) return NULL;
        name = wire_text(wire, length);
        if (name == NULL) return NULL;
    }
    int has_count = is_flexible ? wire_uvarint(wire, &count) : wire_int32(wire, &count);
    count -= is_flexible;
    if (!has_count || count < 0 || count > wire_left(wire) / (is_flexible ? 6 : 8) || count > *items_left) {
        Py_DECREF(name);
        return NULL;
    }
    *items_left -= count;
    PyObject *partitions = PyList_New((Py_ssize_t)count);
    for (int64_t i = 0; partitions != NULL && i < count; i++) {
        PyObject *partition = produce_partition(wire, body, begin, is_flexible);
        if (partition == NULL)
            Py_CLEAR(partitions);
        else
            PyList_SetItem(partitions, (Py_ssize_t)i, partition);
    }
    if (partitions == NULL || (is_flexible && !wire_no_tags(wire))) {
        Py_XDECREF(partitions);
        Py_DECREF(name);
        return NULL;
    }
    return Py_BuildValue("(Ny#N)", name, (const char *)id, (Py_ssize_t)TOPIC_ID_BYTES, partitions);
}

static PyObject *produce_topics(Wire *wire, int64_t version, PyObject *body, const uint8_t *begin, int64_t count) {
    int64_t items_left = WIRE_ITEMS_MAX - count;
    if (count < 0 || count > wire_left(wire) / (version >= PRODUCE_FLEXIBLE ? 3 : 6) || items_left < 0) return NULL;
    PyObject *topics = PyList_New((Py_ssize_t)count);
    for (int64_t i = 0; topics != NULL && i < count; i++) {
        PyObject *topic = produce_topic(wire, version, body, begin, &items_left);
        if (topic == NULL)
            Py_CLEAR(topics);
        else
            PyList_SetItem(topics, (Py_ssize_t)i, topic);
    }
    return topics;
}

static PyObject *produce_request(Wire *wire, int64_t version, PyObject *body) {
    int is_flexible = version >= PRODUCE_FLEXIBLE;
    const uint8_t *begin = wire->at;
    int64_t length, acks, timeout_ms, count;
    if (is_flexible ? !wire_uvarint(wire, &length) : !wire_int16(wire, &length)) return NULL;
    length -= is_flexible;
    if (length >= WIRE_STRING_MAX) return NULL;
    PyObject *id = length == -1 ? Py_NewRef(Py_None) : wire_text(wire, length), *topics = NULL;
    if (id == NULL) return NULL;
    if (wire_int16(wire, &acks) && wire_int32(wire, &timeout_ms) &&
        (is_flexible ? wire_uvarint(wire, &count) : wire_int32(wire, &count)))
        topics = produce_topics(wire, version, body, begin, count - is_flexible);
    if (topics == NULL || (is_flexible && !wire_no_tags(wire)) || wire->at != wire->end) {
        Py_XDECREF(topics);
        Py_DECREF(id);
        return NULL;
    }
    return Py_BuildValue("(NLLN)", id, (long long)acks, (long long)timeout_ms, topics);
}

static PyObject *codec_usual_produce(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    int64_t version;
    Py_buffer view;
    if (check_arity("usual_produce", count, 2, 2) < 0 || as_int64(args[0], "version", &version) < 0) return NULL;
    if (version < PRODUCE_LOWEST || version > PRODUCE_WITH_TOPIC_IDS || !PyMemoryView_Check(args[1])) return unusual();
    if (PyObject_GetBuffer(args[1], &view, PyBUF_SIMPLE) < 0) return NULL;
    Wire wire = {view.buf, (const uint8_t *)view.buf + view.len};
    PyObject *request = produce_request(&wire, version, args[1]);
    PyBuffer_Release(&view);
    return request != NULL ? request : unusual();
}

/* One topic of a Produce response. The pointers refer to bytes of the caller's objects. */
typedef struct {
    const char *name; /* the topic's name or id, depending on the version */
    Py_ssize_t name_bytes;
    PyObject *results;
    Py_ssize_t count;
} ProducedTopic;

static int produced_topic_open(PyObject *topic, int64_t version, ProducedTopic *out) {
    if (!PyTuple_Check(topic) || PyTuple_Size(topic) != 3) return 0;
    PyObject *name = PyTuple_GetItem(topic, 0), *id = PyTuple_GetItem(topic, 1);
    out->results = PyTuple_GetItem(topic, 2);
    if (!PyList_Check(out->results)) return 0;
    out->count = PyList_Size(out->results);
    if (version >= PRODUCE_WITH_TOPIC_IDS) {
        if (!PyBytes_Check(id) || PyBytes_Size(id) != TOPIC_ID_BYTES) return 0;
        out->name = PyBytes_AsString(id);
        out->name_bytes = TOPIC_ID_BYTES;
        return 1;
    }
    if (!PyUnicode_Check(name)) return 0;
    out->name = PyUnicode_AsUTF8AndSize(name, &out->name_bytes);
    if (out->name == NULL) {
        PyErr_Clear();
        return 0;
    }
    return out->name_bytes <= WIRE_TOPIC_NAME_MAX;
}

/* Writes the five numbers of a partition's result (four before version 5), and that there are no error texts. Returns
 * NULL if the result is not a tuple of five numbers of the right sizes. */
static uint8_t *produced_write(uint8_t *out, PyObject *result, int64_t version) {
    static const int sizes[5] = {4, 2, 8, 8, 8};
    int fields = version >= PRODUCE_WITH_START ? 5 : 4;
    if (!PyTuple_Check(result) || PyTuple_Size(result) != 5) return NULL;
    for (int i = 0; i < fields; i++) {
        PyObject *number = PyTuple_GetItem(result, i);
        if (!PyLong_Check(number)) return NULL;
        long long value = PyLong_AsLongLong(number);
        if (value == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return NULL;
        }
        int bits = 8 * sizes[i] - 1;
        if (bits < 63 && (value >> bits) != 0 && (value >> bits) != -1) return NULL;
        out = store_big(out, (uint64_t)value, sizes[i]);
    }
    if (version >= PRODUCE_FLEXIBLE) {
        *out++ = 1; /* no record errors */
        *out++ = 0; /* no error message */
        *out++ = 0; /* no tagged fields */
    } else if (version >= PRODUCE_WITH_MESSAGES) {
        out = store_big(out, 0, 4);
        out = store_big(out, 0xFFFF, 2);
    }
    return out;
}

static uint8_t *write_length(uint8_t *out, int64_t length, int bytes) {
    if (bytes) return store_big(out, (uint64_t)length, bytes);
    if (length + 1 > 0x7F) *out++ = (uint8_t)((length + 1) & 0x7F) | 0x80;
    *out++ = (uint8_t)(length + 1 > 0x7F ? (length + 1) >> 7 : length + 1);
    return out;
}

enum { PRODUCED_TOPICS_MAX = 8, PRODUCED_RESULT_BYTES = 36, PRODUCED_TOPIC_BYTES = WIRE_TOPIC_NAME_MAX + 8 };

static PyObject *codec_usual_produced(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    uint8_t buffer[16 + PRODUCED_TOPICS_MAX * PRODUCED_TOPIC_BYTES + PRODUCE_RESULTS_MAX * PRODUCED_RESULT_BYTES];
    ProducedTopic topic;
    int64_t version, throttle_ms;
    if (check_arity("usual_produced", count, 3, 3) < 0 || as_int64(args[0], "version", &version) < 0 ||
        as_int64(args[2], "throttle_ms", &throttle_ms) < 0)
        return NULL;
    if (version < PRODUCE_LOWEST || version > PRODUCE_WITH_TOPIC_IDS || !PyList_Check(args[1])) return unusual();
    if (throttle_ms < INT32_MIN || throttle_ms > INT32_MAX) return unusual();
    Py_ssize_t topic_count = PyList_Size(args[1]), results_left = PRODUCE_RESULTS_MAX;
    if (topic_count > PRODUCED_TOPICS_MAX) return unusual();
    int is_flexible = version >= PRODUCE_FLEXIBLE;
    int count_bytes = is_flexible ? 0 : 4;
    uint8_t *out = write_length(buffer, topic_count, count_bytes);
    for (Py_ssize_t i = 0; i < topic_count; i++) {
        if (!produced_topic_open(PyList_GetItem(args[1], i), version, &topic)) return unusual();
        if (topic.count > results_left) return unusual();
        results_left -= topic.count;
        if (version < PRODUCE_WITH_TOPIC_IDS) out = write_length(out, topic.name_bytes, is_flexible ? 0 : 2);
        memcpy(out, topic.name, (size_t)topic.name_bytes);
        out = write_length(out + topic.name_bytes, topic.count, count_bytes);
        for (Py_ssize_t j = 0; j < topic.count; j++) {
            out = produced_write(out, PyList_GetItem(topic.results, j), version);
            if (out == NULL) return unusual();
        }
        if (is_flexible) *out++ = 0;
    }
    out = store_big(out, (uint64_t)throttle_ms, 4);
    if (is_flexible) *out++ = 0;
    return PyBytes_FromStringAndSize((const char *)buffer, out - buffer);
}

/* Returns (record count, max timestamp, producer id, producer epoch, base sequence) if the bytes are exactly one batch
 * with a valid header and CRC that is neither compressed nor transactional nor a control batch. Otherwise returns
 * None. */
static PyObject *codec_usual_batch(PyObject *module, PyObject *buffer) {
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE) < 0) return NULL;
    const uint8_t *data = view.buf;
    int64_t length = view.len;
    int32_t last_offset_delta = 0, records = 0;
    int is_usual = length >= BATCH_HEADER_BYTES && data[BATCH_MAGIC_AT] == BATCH_MAGIC &&
                   (int32_t)load_big(data + BATCH_LENGTH_AT, 4) == length - BATCH_LENGTH_PREFIX &&
                   !(load_big(data + BATCH_ATTRIBUTES_AT, 2) & BATCH_UNUSUAL);
    if (is_usual) {
        last_offset_delta = (int32_t)load_big(data + 23, 4);
        records = (int32_t)load_big(data + 57, 4);
        is_usual = records > 0 && last_offset_delta == records - 1 &&
                   records <= (length - BATCH_HEADER_BYTES) / RECORD_BYTES_MIN &&
                   crc32c_of(0, data + BATCH_ATTRIBUTES_AT, (size_t)(length - BATCH_ATTRIBUTES_AT)) ==
                       load_big(data + BATCH_CRC_AT, 4);
    }
    PyObject *fields = NULL;
    if (is_usual)
        fields = Py_BuildValue("(iLLii)", (int)records, (long long)load_big(data + 35, 8),
                               (long long)load_big(data + 43, 8), (int)(int16_t)load_big(data + 51, 2),
                               (int)(int32_t)load_big(data + 53, 4));
    PyBuffer_Release(&view);
    return fields != NULL ? fields : unusual();
}

/* Messages by their shape
 *
 * A shape has a byte for each field of a message in one version:
 *
 *     b h i q    an int8, int16, int32, int64
 *     u          16 bytes
 *     s S n      a string; S may be null; n is a topic's name
 *     c C m      the same three in compact form
 *     ( .. )     an array of structs, with the shape of the structs; [ .. ] is a compact array
 *     -          a compact array that is null
 *     !          a struct that is null
 *     0          an empty list of tagged fields
 *
 * The value of a struct is a tuple of its fields; the value of an array is a list. `-`, `!` and `0` have no value. */

enum { SHAPE_DEPTH_MAX = 4, SHAPED_BYTES_MAX = 4096, NULL_STRUCT = 0xFF };

typedef struct {
    const char *at, *end;
} Shape;

static inline int shape_has_value(char field) { return strchr("-!0", field) == NULL; }
static inline int shape_is_compact(char field) { return strchr("cCm[", field) != NULL; }
static inline int shape_ends(const Shape *shape) {
    return shape->at == shape->end || *shape->at == ')' || *shape->at == ']';
}

/* Advances past the shape of an array's items and the closing bracket. */
static void shape_skip(Shape *shape) {
    for (int depth = 1; depth > 0 && shape->at < shape->end; shape->at++) {
        if (*shape->at == '(' || *shape->at == '[') depth++;
        if (*shape->at == ')' || *shape->at == ']') depth--;
    }
}

/* Returns the number of values that a struct of this shape has. */
static Py_ssize_t shape_width(Shape shape) {
    Py_ssize_t width = 0;
    while (!shape_ends(&shape)) {
        char field = *shape.at++;
        width += shape_has_value(field);
        if (field == '(' || field == '[') shape_skip(&shape);
    }
    return width;
}

/* Returns whether all bytes of the shape are known and its brackets are paired. Sets an exception if not. */
static int shape_open(PyObject *bytes, Shape *shape) {
    char open[SHAPE_DEPTH_MAX];
    int depth = 0, is_valid = 1;
    if (!PyBytes_Check(bytes)) {
        PyErr_SetString(PyExc_TypeError, "a shape is not bytes");
        return 0;
    }
    shape->at = PyBytes_AsString(bytes);
    shape->end = shape->at + PyBytes_Size(bytes);
    for (const char *at = shape->at; is_valid && at < shape->end; at++) {
        if (*at == '(' || *at == '[') {
            is_valid = depth < SHAPE_DEPTH_MAX;
            if (is_valid) open[depth++] = *at == '(' ? ')' : ']';
        } else if (*at == ')' || *at == ']') {
            is_valid = depth > 0 && open[--depth] == *at;
        } else {
            is_valid = *at != '\0' && strchr("bhiqusSncCm-!0", *at) != NULL;
        }
    }
    if (!is_valid || depth != 0) {
        PyErr_SetString(PyExc_ValueError, "not a shape");
        return 0;
    }
    return 1;
}

static PyObject *shaped_struct(Wire *wire, Shape *shape, int64_t *items_left);

static PyObject *shaped_array(Wire *wire, Shape *shape, int64_t count, int64_t *items_left) {
    /* An item has at least one byte, so no list can have more items than the message has bytes. */
    if (count < 0 || count > wire_left(wire) || count > *items_left) return NULL;
    *items_left -= count;
    PyObject *items = PyList_New((Py_ssize_t)count);
    for (int64_t i = 0; items != NULL && i < count; i++) {
        Shape of_item = *shape;
        PyObject *item = shaped_struct(wire, &of_item, items_left);
        if (item == NULL)
            Py_CLEAR(items);
        else
            PyList_SetItem(items, (Py_ssize_t)i, item);
    }
    shape_skip(shape);
    return items;
}

static PyObject *shaped_number(Wire *wire, int bytes) {
    if (wire_left(wire) < bytes) return NULL;
    uint64_t value = load_big(wire->at, bytes);
    wire->at += bytes;
    int unused_bits = 64 - 8 * bytes;
    return PyLong_FromLongLong((int64_t)(value << unused_bits) >> unused_bits);
}

/* Returns the value of the next field, or NULL if the bytes are unusual. If memory is short, an exception is set. */
static PyObject *shaped_field(Wire *wire, Shape *shape, char field, int64_t *items_left) {
    int is_compact = shape_is_compact(field);
    int64_t length;
    switch (field) {
    case 'b': return shaped_number(wire, 1);
    case 'h': return shaped_number(wire, 2);
    case 'i': return shaped_number(wire, 4);
    case 'q': return shaped_number(wire, 8);
    case 'u':
        if (wire_left(wire) < TOPIC_ID_BYTES) return NULL;
        wire->at += TOPIC_ID_BYTES;
        return PyBytes_FromStringAndSize((const char *)wire->at - TOPIC_ID_BYTES, TOPIC_ID_BYTES);
    case '(':
    case '[':
        if (is_compact ? !wire_uvarint(wire, &length) : !wire_int32(wire, &length)) return NULL;
        return shaped_array(wire, shape, length - is_compact, items_left);
    default: break;
    }
    if (is_compact ? !wire_uvarint(wire, &length) : !wire_int16(wire, &length)) return NULL;
    length -= is_compact;
    if (length == -1 && (field == 'S' || field == 'C')) return Py_NewRef(Py_None);
    if (length > (field == 'n' || field == 'm' ? WIRE_TOPIC_NAME_MAX : WIRE_STRING_MAX)) return NULL;
    return wire_text(wire, length);
}

static PyObject *shaped_struct(Wire *wire, Shape *shape, int64_t *items_left) {
    Py_ssize_t number = 0;
    PyObject *fields = PyTuple_New(shape_width(*shape));
    while (fields != NULL && !shape_ends(shape)) {
        char field = *shape->at++;
        if (shape_has_value(field)) {
            PyObject *value = shaped_field(wire, shape, field, items_left);
            if (value == NULL)
                Py_CLEAR(fields);
            else
                PyTuple_SetItem(fields, number++, value);
        } else if (wire->at == wire->end || *wire->at++ != (field == '!' ? NULL_STRUCT : 0)) {
            Py_CLEAR(fields);
        }
    }
    return fields;
}

static PyObject *codec_usual_message(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    Py_buffer view;
    Shape shape;
    int64_t items_left = WIRE_ITEMS_MAX;
    if (check_arity("usual_message", count, 2, 2) < 0 || !shape_open(args[0], &shape)) return NULL;
    if (PyObject_GetBuffer(args[1], &view, PyBUF_SIMPLE) < 0) return NULL;
    Wire wire = {view.buf, (const uint8_t *)view.buf + view.len};
    PyObject *message = shaped_struct(&wire, &shape, &items_left);
    if (message != NULL && wire.at != wire.end) Py_CLEAR(message);
    PyBuffer_Release(&view);
    return message != NULL ? message : unusual();
}

typedef struct {
    uint8_t *at, *end;
} Room;

static int shape_write_struct(Room *room, Shape *shape, PyObject *fields);

static int shape_write_bytes(Room *room, const void *data, Py_ssize_t length) {
    if (length > room->end - room->at) return 0;
    memcpy(room->at, data, (size_t)length);
    room->at += length;
    return 1;
}

/* Writes a length or count as a number of `bytes` bytes; 0 means the compact form. */
static int shape_write_length(Room *room, Py_ssize_t length, int bytes) {
    if (room->end - room->at < 4 || length > SHAPED_BYTES_MAX) return 0;
    room->at = write_length(room->at, length, bytes);
    return 1;
}

static int shape_write_number(Room *room, PyObject *number, int bytes) {
    if (!PyLong_Check(number) || room->end - room->at < bytes) return 0;
    long long value = PyLong_AsLongLong(number);
    if (value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    int bits = 8 * bytes - 1;
    if (bits < 63 && (value >> bits) != 0 && (value >> bits) != -1) return 0;
    room->at = store_big(room->at, (uint64_t)value, bytes);
    return 1;
}

static int shape_write_array(Room *room, Shape *shape, PyObject *items, int is_compact) {
    if (!PyList_Check(items)) return 0;
    Py_ssize_t count = PyList_Size(items);
    if (!shape_write_length(room, count, is_compact ? 0 : 4)) return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Shape of_item = *shape;
        if (!shape_write_struct(room, &of_item, PyList_GetItem(items, i))) return 0;
    }
    shape_skip(shape);
    return 1;
}

static int shape_write_text(Room *room, PyObject *text, char field) {
    int length_bytes = shape_is_compact(field) ? 0 : 2;
    if (text == Py_None && field == 'C') return shape_write_bytes(room, "\0", 1);
    if (text == Py_None && field == 'S') return shape_write_bytes(room, "\xff\xff", 2);
    if (!PyUnicode_Check(text)) return 0;
    Py_ssize_t length;
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &length);
    if (utf8 == NULL) {
        PyErr_Clear();
        return 0;
    }
    return shape_write_length(room, length, length_bytes) && shape_write_bytes(room, utf8, length);
}

static int shape_write_field(Room *room, Shape *shape, char field, PyObject *value) {
    switch (field) {
    case 'b': return shape_write_number(room, value, 1);
    case 'h': return shape_write_number(room, value, 2);
    case 'i': return shape_write_number(room, value, 4);
    case 'q': return shape_write_number(room, value, 8);
    case 'u':
        return PyBytes_Check(value) && PyBytes_Size(value) == TOPIC_ID_BYTES &&
               shape_write_bytes(room, PyBytes_AsString(value), TOPIC_ID_BYTES);
    case '(':
    case '[': return shape_write_array(room, shape, value, field == '[');
    default: return shape_write_text(room, value, field);
    }
}

static int shape_write_struct(Room *room, Shape *shape, PyObject *fields) {
    Py_ssize_t number = 0;
    if (!PyTuple_Check(fields) || PyTuple_Size(fields) != shape_width(*shape)) return 0;
    while (!shape_ends(shape)) {
        char field = *shape->at++;
        if (shape_has_value(field)) {
            if (!shape_write_field(room, shape, field, PyTuple_GetItem(fields, number++))) return 0;
        } else if (!shape_write_bytes(room, field == '!' ? "\xff" : "\0", 1)) {
            return 0;
        }
    }
    return 1;
}

static PyObject *codec_usual_encoding(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    uint8_t buffer[SHAPED_BYTES_MAX];
    Room room = {buffer, buffer + sizeof buffer};
    Shape shape;
    if (check_arity("usual_encoding", count, 2, 2) < 0 || !shape_open(args[0], &shape)) return NULL;
    if (!shape_write_struct(&room, &shape, args[1])) return unusual();
    return PyBytes_FromStringAndSize((const char *)buffer, room.at - buffer);
}

/* The module */

static int module_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **keep) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL) return -1;
    int status = PyModule_AddType(module, (PyTypeObject *)type);
    if (status == 0 && keep != NULL)
        *keep = (PyTypeObject *)type;
    else
        Py_DECREF(type);
    return status;
}

static int module_exec(PyObject *module) {
    ModuleState *state = PyModule_GetState(module);
    crc_init();
    PyObject *errors = PyImport_ImportModule("odradek_protocol.records.errors");
    if (errors == NULL) return -1;
    state->corrupt_batch = PyObject_GetAttrString(errors, "CorruptBatch");
    Py_DECREF(errors);
    if (state->corrupt_batch == NULL) return -1;
    if (module_add_type(module, &record_spec, &state->record_type) < 0) return -1;
    if (module_add_type(module, &record_buffer_spec, NULL) < 0) return -1;
    if (module_add_type(module, &record_reader_spec, NULL) < 0) return -1;
    return module_add_type(module, &record_columns_spec, NULL);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    ModuleState *state = PyModule_GetState(module);
    Py_VISIT(state->corrupt_batch);
    Py_VISIT(state->record_type);
    return 0;
}

static int module_clear(PyObject *module) {
    ModuleState *state = PyModule_GetState(module);
    Py_CLEAR(state->corrupt_batch);
    Py_CLEAR(state->record_type);
    return 0;
}

static void module_free(void *module) { module_clear(module); }

static PyMethodDef module_methods[] = {
    {"crc32c", (PyCFunction)(void (*)(void))codec_crc32c, METH_FASTCALL, "CRC32C of a buffer, continued from a value."},
    {"lines", (PyCFunction)(void (*)(void))codec_lines, METH_FASTCALL, "See `python_codec.lines`."},
    {"murmur2", codec_murmur2, METH_O, "Kafka's murmur2 of a buffer, signed."},
    {"usual_batch", codec_usual_batch, METH_O, "See `python_codec.usual_batch`."},
    {"usual_encoding", (PyCFunction)(void (*)(void))codec_usual_encoding, METH_FASTCALL, "See `python_codec.usual_encoding`."},
    {"usual_header", (PyCFunction)(void (*)(void))codec_usual_header, METH_FASTCALL, "See `python_codec.usual_header`."},
    {"usual_message", (PyCFunction)(void (*)(void))codec_usual_message, METH_FASTCALL, "See `python_codec.usual_message`."},
    {"usual_produce", (PyCFunction)(void (*)(void))codec_usual_produce, METH_FASTCALL, "See `python_codec.usual_produce`."},
    {"usual_produced", (PyCFunction)(void (*)(void))codec_usual_produced, METH_FASTCALL, "See `python_codec.usual_produced`."},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "odradek_protocol.records._codec",
    .m_doc = "The record codec in C.",
    .m_size = sizeof(ModuleState),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__codec(void) { return PyModuleDef_Init(&module_definition); }
