/* The program of the image with musl: copies standard input to standard output in upper case. */
#include <ctype.h>
#include <stdio.h>

int main(void)
{
    int letter;

    while ((letter = getchar()) != EOF)
        putchar(toupper(letter));
    return fflush(stdout) != 0;
}
