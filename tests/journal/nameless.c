/* Keeps something in a file that it has removed, and waits for input. */
#include <fcntl.h>
#include <unistd.h>

int main(void) {
    int fd = open("/d/x", O_CREAT | O_RDWR, 0666);
    char data[4] = "";
    unlink("/d/x");
    write(fd, "abc", 3);
    write(1, "ready\n", 6);
    read(0, data, 1);
    lseek(fd, 0, SEEK_SET);
    read(fd, data, 3);
    write(1, data, 3);
    return 0;
}
