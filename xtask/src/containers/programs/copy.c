/* The one program of an image that has nothing else: `/program cat` copies standard input to standard output. */
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    static char buffer[65536];
    ssize_t got;

    if (count != 2 || strcmp(arguments[1], "cat") != 0)
        return 2;
    while ((got = read(0, buffer, sizeof buffer)) > 0) {
        ssize_t done = 0;
        while (done < got) {
            ssize_t wrote = write(1, buffer + done, got - done);
            if (wrote < 0)
                return 1;
            done += wrote;
        }
    }
    return got < 0;
}
