// tenant WORD ARG...: what a program of a tenant's may do, one word each. "." stands between several that follow each other.
//
//   listen PATH      listens on a socket there, as long as it lives
//   bind PATH        binds a socket there, and "serve" listens on it
//   beget PATH       the same by a child, which ends: the socket stays open here
//   open PATH        opens it and keeps it open
//   place PATH       opens it as a place only (O_PATH)
//   fd N             reports what descriptor N is
//   send PATH        sends the last descriptor to who connects to a socket there
//   take PATH        connects, takes a descriptor and keeps it open
//   pull PID FD      takes one by pidfd_getfd(2)
//   thread           ends its first thread and lives on in another
//   user UID         is that user from here on
//   ready PATH       makes an empty file
//   wait             stays until it is killed
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char **words;
static int last = -1;

static void die(const char *what) {
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static char *next(void) {
	if (!*words) {
		fprintf(stderr, "a word is missing\n");
		exit(2);
	}
	return *words++;
}

static struct sockaddr_un address(const char *path) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof a.sun_path) {
		errno = ENAMETOOLONG;
		die(path);
	}
	strcpy(a.sun_path, path);
	return a;
}

static int bound(const char *path) {
	struct sockaddr_un a = address(path);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	unlink(path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a)) die(path);
	chmod(path, 0666);
	return fd;
}

static int listening(const char *path, int beget) {
	int fd = bound(path);
	if (!beget) {
		if (listen(fd, 8)) die("listen");
		return fd;
	}
	pid_t child = fork();
	if (child == 0) _exit(listen(fd, 8) != 0);
	int status;
	if (child < 0 || waitpid(child, &status, 0) != child || status) die("beget");
	return fd;
}

static void pass(const char *path) {
	int fd = listening(path, 0), peer = accept(fd, NULL, NULL);
	char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec io = {&byte, 1};
	struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &last, sizeof last);
	if (peer < 0 || sendmsg(peer, &m, 0) != 1) die("send");
}

static void take(const char *path) {
	struct sockaddr_un a = address(path);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	while (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) {
		if (fd < 0 || errno != ECONNREFUSED) die(path);
		usleep(10000); // it is bound, and soon listens
	}
	char byte, room[CMSG_SPACE(sizeof(int))];
	struct iovec io = {&byte, 1};
	struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	struct cmsghdr *c;
	if (recvmsg(fd, &m, 0) != 1 || !(c = CMSG_FIRSTHDR(&m)) || c->cmsg_type != SCM_RIGHTS) die("take");
	memcpy(&last, CMSG_DATA(c), sizeof last);
	close(fd);
}

static void pull(pid_t pid, int fd) {
	int process = syscall(SYS_pidfd_open, pid, 0);
	last = process < 0 ? -1 : syscall(SYS_pidfd_getfd, process, fd, 0);
	if (last < 0) die("pull");
}

static void report(int fd) {
	struct stat st;
	if (fstat(fd, &st))
		printf("%d: %s\n", fd, strerror(errno));
	else if (S_ISCHR(st.st_mode))
		printf("%d: c %u:%u\n", fd, major(st.st_rdev), minor(st.st_rdev));
	else
		printf("%d: other\n", fd);
	fflush(stdout);
}

static void go(void);

static void *on(void *unused) {
	(void)unused;
	usleep(50000); // the first thread has ended by then
	go();
	exit(0);
}

static void go(void) {
	while (*words) {
		char *word = next();
		if (!strcmp(word, "."))
			;
		else if (!strcmp(word, "listen"))
			listening(next(), 0);
		else if (!strcmp(word, "bind"))
			last = bound(next());
		else if (!strcmp(word, "serve")) {
			if (listen(last, 8)) die("serve");
		} else if (!strcmp(word, "beget"))
			listening(next(), 1);
		else if (!strcmp(word, "open")) {
			char *path = next();
			if ((last = open(path, O_RDWR)) < 0 && (last = open(path, O_RDONLY)) < 0) die(path);
		} else if (!strcmp(word, "fd"))
			report(atoi(next()));
		else if (!strcmp(word, "send"))
			pass(next());
		else if (!strcmp(word, "take"))
			take(next());
		else if (!strcmp(word, "pull")) {
			pid_t pid = atoi(next());
			pull(pid, atoi(next()));
		} else if (!strcmp(word, "ready")) {
			char *path = next();
			int fd = open(path, O_CREAT | O_WRONLY, 0666);
			if (fd < 0) die(path);
			close(fd);
		} else if (!strcmp(word, "place")) {
			char *path = next();
			if (open(path, O_PATH) < 0) die(path);
		} else if (!strcmp(word, "user")) {
			uid_t uid = atoi(next());
			if (setgid(uid) || setuid(uid)) die("user");
		} else if (!strcmp(word, "thread")) {
			pthread_t t;
			if (pthread_create(&t, NULL, on, NULL)) die("thread");
			pthread_exit(NULL);
		} else if (!strcmp(word, "wait"))
			for (;;) pause();
		else {
			fprintf(stderr, "what is %s?\n", word);
			exit(2);
		}
	}
}

int main(int argc, char **argv) {
	(void)argc;
	words = argv + 1;
	go();
	return 0;
}
