/* hiredis: commands of an application at the URL or the Unix socket that is given. Prints what it
 * saw, one line for each call; then sends what standard input says. */

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 8

static void show(const redisReply *reply) {
    switch (reply->type) {
    case REDIS_REPLY_INTEGER:
        printf("%lld", reply->integer);
        break;
    case REDIS_REPLY_NIL:
        printf("nil");
        break;
    case REDIS_REPLY_ARRAY:
        printf("[");
        for (size_t at = 0; at < reply->elements; at++) {
            printf(at == 0 ? "" : " ");
            show(reply->element[at]);
        }
        printf("]");
        break;
    case REDIS_REPLY_ERROR:
        printf("error %s", reply->str);
        break;
    default:
        printf("%s", reply->str);
    }
}

static void say(const char *name, redisContext *context, redisReply *reply) {
    if (reply == NULL) {
        printf("%s: %s\n", name, context->errstr);
        exit(1);
    }
    printf("%s", name);
    show(reply);
    printf("\n");
    fflush(stdout);
    freeReplyObject(reply);
}

static void converse(redisContext *context) {
    char line[1024];
    while (fgets(line, sizeof line, stdin) != NULL) {
        const char *words[WORDS_MAX];
        int count = 0;
        for (char *word = strtok(line, " \n"); word != NULL && count < WORDS_MAX;
             word = strtok(NULL, " \n"))
            words[count++] = word;
        say("", context, redisCommandArgv(context, count, words, NULL));
    }
}

int main(int count, char **arguments) {
    if (count != 5)
        return 2;
    const char *where = arguments[1], *password = arguments[3];
    redisContext *context = where[0] == '/'
                                ? redisConnectUnix(where)
                                : redisConnect("127.0.0.1", atoi(strrchr(where, ':') + 1));
    if (context == NULL || context->err) {
        printf("connect: %s\n", context ? context->errstr : "no memory");
        return 1;
    }
    if (password[0] != '\0')
        say("auth ", context, redisCommand(context, "AUTH %s", password));
    say("ping ", context, redisCommand(context, "PING"));
    say("throttle ", context, redisCommand(context, "CL.THROTTLE %s 15 30 60 1", "u"));
    say("set ", context, redisCommand(context, "SET %b 7 EX 3600", "a\0b", (size_t)3));
    say("incr ", context, redisCommand(context, "INCRBY %b 3", "a\0b", (size_t)3));
    for (int at = 0; at < 3; at++)
        redisAppendCommand(context, at == 1 ? "GET nobody" : "INCR c");
    for (int at = 0; at < 3; at++) {
        void *reply = NULL;
        redisGetReply(context, &reply);
        say("pipeline ", context, reply);
    }
    say("delete ", context, redisCommand(context, "DEL u c %b", "a\0b", (size_t)3));
    say("eval ", context, redisCommand(context, "EVAL %s 0", "return 1"));
    converse(context);
    redisFree(context);
    return 0;
}
