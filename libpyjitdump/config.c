#include "config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct choice {
    const char *word;
    int value;
};

static const struct choice output_words[] = {
    {"elf", OUTPUT_ELF}, {"jitdump", OUTPUT_JITDUMP}, {"map", OUTPUT_MAP}, {NULL, 0}};

static const struct choice log_words[] = {{"off", LOG_OFF},   {"error", LOG_ERROR},
                                          {"warn", LOG_WARN}, {"info", LOG_INFO},
                                          {"debug", LOG_DEBUG}, {NULL, 0}};

static const struct choice enable_words[] = {{"1", 1}, {"0", 0}, {NULL, 0}};

/* The value of a word of `length` characters, or -1. */
static int look_up(const struct choice *choices, const char *word, size_t length)
{
    for (; choices->word; choices++)
        if (strlen(choices->word) == length && memcmp(choices->word, word, length) == 0)
            return choices->value;
    return -1;
}

/* An unset and an empty variable mean the same. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static void refuse(const char *name, const char *value, const char *accepted, const char *instead)
{
    log_line(LOG_WARN, "%s=%s is not valid: use %s; going on with %s", name, value, accepted,
             instead);
}

static void read_log(void)
{
    const char *value = variable("PYJD_LOG");
    if (!value)
        return;
    int level = look_up(log_words, value, strlen(value));
    if (level >= 0)
        log_set_level((enum log_level)level);
    else
        refuse("PYJD_LOG", value, "off, error, warn, info or debug", "warn");
}

static void read_enable(struct config *config)
{
    config->enable = true;
    const char *value = variable("PYJD_ENABLE");
    if (!value)
        return;
    int enable = look_up(enable_words, value, strlen(value));
    if (enable >= 0)
        config->enable = enable;
    else
        refuse("PYJD_ENABLE", value, "0 or 1", "1");
}

static void read_outputs(struct config *config)
{
    config->outputs = OUTPUT_ELF | OUTPUT_JITDUMP | OUTPUT_MAP;
    const char *value = variable("PYJD_OUTPUT");
    if (!value)
        return;
    unsigned outputs = 0;
    for (const char *word = value;; word++) {
        size_t length = strcspn(word, ",");
        int output = look_up(output_words, word, length);
        if (output < 0) {
            refuse("PYJD_OUTPUT", value, "a comma list of elf, jitdump and map", "all three");
            return;
        }
        outputs |= (unsigned)output;
        word += length;
        if (!*word)
            break;
    }
    config->outputs = outputs;
}

static void read_max_functions(struct config *config)
{
    config->max_functions = CONFIG_MAX_FUNCTIONS_DEFAULT;
    const char *value = variable("PYJD_MAX_FUNCTIONS");
    if (!value)
        return;
    char *end = NULL;
    errno = 0;
    unsigned long number = strtoul(value, &end, 10);
    bool digits = *value >= '0' && *value <= '9' && *end == '\0';
    if (digits && !errno && number >= 1 && number <= CONFIG_MAX_FUNCTIONS_LIMIT)
        config->max_functions = (uint32_t)number;
    else
        refuse("PYJD_MAX_FUNCTIONS", value, "a number from 1 to 16777216", "262144");
}

/* perf records absolute paths, and the program may change its directory: resolve now. */
static void read_dir(struct config *config)
{
    const char *value = variable("PYJD_DIR");
    struct stat st;
    if (value) {
        if (realpath(value, config->dir) && stat(config->dir, &st) == 0 && S_ISDIR(st.st_mode)) {
            if (strcmp(config->dir, "/") == 0)
                config->dir[0] = '\0';
            return;
        }
        log_line(LOG_WARN, "PYJD_DIR=%s is not a directory that can be reached; going on with /tmp",
                 value);
    }
    strcpy(config->dir, "/tmp");
}

void config_read(struct config *config)
{
    int saved = errno;
    read_log();
    read_enable(config);
    read_outputs(config);
    read_max_functions(config);
    read_dir(config);
    errno = saved;
}
