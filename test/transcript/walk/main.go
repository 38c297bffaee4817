// Command walk types the commands that sections of a document show into a shell, and compares what
// they say with what is shown there:
//
//	walk README.md SECTION[,SECTION...] -- COMMAND...
//
// COMMAND is the shell: it reads commands from its standard input until that ends. A command that
// only looks at a cluster is typed again until it says what is shown, as a reader does. In the end
// walk says how many commands it typed, and the seconds that they took.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/test/transcript"
)

func main() {
	if err := walk(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "walk:", err)
		os.Exit(1)
	}
}

func walk(args []string) error {
	at := slices.Index(args, "--")
	if at != 2 || len(args) < 4 {
		return fmt.Errorf("usage: walk FILE SECTION[,SECTION...] -- COMMAND")
	}
	page, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var steps []transcript.Step
	for name := range strings.SplitSeq(args[1], ",") {
		found := transcript.Steps(string(page), name)
		if len(found) == 0 {
			return fmt.Errorf("%s has no commands in a section %q", args[0], name)
		}
		steps = append(steps, found...)
	}
	return typeAll(steps, exec.Command(args[3], args[4:]...))
}

// mark ends what a command says.
const mark = "\x01 end of the answer \x01"

func typeAll(steps []transcript.Step, shell *exec.Cmd) error {
	in, err := shell.StdinPipe()
	if err != nil {
		return err
	}
	out, err := shell.StdoutPipe()
	if err != nil {
		return err
	}
	shell.Stderr = os.Stderr
	if err := shell.Start(); err != nil {
		return err
	}
	answers, different := bufio.NewReader(out), 0
	fmt.Fprintln(in, "exec 2>&1")
	began, looked := time.Now(), 0
	for _, s := range steps {
		fmt.Println("# " + strings.ReplaceAll(s.Command, "\n", "\n> "))
		said, err := answer(s.Command, in, answers)
		if onlyLooks(s.Command) {
			looked++
			for until := time.Now().Add(patience); err == nil && !transcript.Agrees(said, s.Says) &&
				time.Now().Before(until); said, err = answer(s.Command, in, answers) {
				time.Sleep(time.Second)
			}
		}
		if err != nil {
			return fmt.Errorf("the shell has ended: %w", err)
		}
		fmt.Print(said)
		if !transcript.Agrees(said, s.Says) {
			different++
			fmt.Printf("DIFFERENT: the page shows\n%s", s.Says)
		}
	}
	fmt.Printf("(%d commands, and %d that look, in %.0f s)\n", len(steps)-looked, looked,
		time.Since(began).Seconds())
	in.Close()
	_ = shell.Wait() // its status is that of the last command, which has been looked at
	if different > 0 {
		return fmt.Errorf("%d of %d commands do not say what is shown", different, len(steps))
	}
	return nil
}

// patience is how long a command that only looks is typed again.
const patience = 3 * time.Minute

// onlyLooks reports whether a command changes nothing in a cluster.
func onlyLooks(command string) bool {
	words := strings.Fields(command)
	return len(words) > 1 && words[0] == "kubectl" &&
		slices.Contains([]string{"logs", "describe", "get", "events"}, words[1])
}

// answer types one command, which gets nothing of what is typed after it.
func answer(command string, in io.Writer, out *bufio.Reader) (string, error) {
	fmt.Fprintf(in, "{ %s\n} </dev/null\nprintf '%%s\\n' '%s'\n", command, mark)
	var said strings.Builder
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			return said.String() + line, err
		}
		if before, found := strings.CutSuffix(line, mark+"\n"); found {
			return said.String() + before, nil
		}
		said.WriteString(line)
	}
}
