#include <stdio.h>

int main(void) {
    char composite[50] = {0};
    for (int n = 2; n < 50; n++) {
        if (composite[n]) continue;
        printf("%d ", n);
        for (int m = n * n; m < 50; m += n) composite[m] = 1;
    }
    puts("");
    return 0;
}
