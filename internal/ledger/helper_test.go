package ledger

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// The test binary runs itself as other processes: LEDGER_HELPER says which, LEDGER_DIR where the
// ledger is.
const helperVariable, dirVariable, numberVariable = "LEDGER_HELPER", "LEDGER_DIR", "LEDGER_NUMBER"

var helpers = map[string]func(l *Ledger, number int) error{
	"hold": holdForever, "grant": grantIfItFits, "story": tellStory, "life": printLife}

func TestMain(m *testing.M) {
	name := os.Getenv(helperVariable)
	if name == "" {
		os.Exit(m.Run())
	}
	dir := os.Getenv(dirVariable)
	number, _ := strconv.Atoi(os.Getenv(numberVariable))
	l := Open(Options{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run"),
		Host: host.Default()})
	if err := helpers[name](l, number); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func helperCommand(binary, name, dir string, number int) *exec.Cmd {
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), helperVariable+"="+name, dirVariable+"="+dir, numberVariable+"="+
		strconv.Itoa(number))
	cmd.Stderr = os.Stderr
	return cmd
}

// helper starts a helper and waits for its first line.
func helper(t *testing.T, name string, b *testLedger) *exec.Cmd {
	t.Helper()
	cmd := helperCommand(os.Args[0], name, filepath.Dir(b.State), 0)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("helper %s: %v", name, err)
	}
	return cmd
}

func holdForever(l *Ledger, _ int) error {
	return l.Update(func(*Tx) error {
		fmt.Println("locked")
		time.Sleep(time.Hour)
		return nil
	})
}

const (
	contenders = 64
	rivalSize  = 2 * grant.GiB
	rivalRoom  = 80 * grant.GiB // for 40 of them
)

// grantIfItFits does what `gpuledger grant` does: it reads all grants, decides, and enters one. It
// starts when its stdin is closed.
func grantIfItFits(l *Ledger, number int) error {
	_, _ = os.Stdin.Read(make([]byte, 1))
	l.Wait = 5 * time.Minute // for all the others, on a busy machine
	return l.Update(func(tx *Tx) error {
		grants, _, err := tx.All()
		if err != nil {
			return err
		}
		var sum grant.Bytes
		for _, g := range grants {
			sum += g.Memory()
		}
		if sum+rivalSize > rivalRoom {
			fmt.Println("refused")
			return nil
		}
		g := sample(number)
		g.GPUs[0].Memory = rivalSize
		if err := tx.Put(g); err != nil {
			return err
		}
		fmt.Println("granted")
		return nil
	})
}

// story is a series of changes that passes every dangerous line. Each step is one Update.
func story() []func(*Tx) error {
	a, other, wider := sample(1), sample(2), sample(1)
	wider.GPUs = append(wider.GPUs, grant.Share{UUID: gpu1, Index: 1, Memory: grant.GiB})
	narrower := sample(1)
	narrower.GPUs, narrower.Owner = wider.GPUs[1:], "claim:other"
	over := sample(3)
	over.Draining = true
	return []func(*Tx) error{
		func(tx *Tx) error { return tx.Put(a) },
		func(tx *Tx) error { return tx.Put(other) },
		func(tx *Tx) error { return tx.Put(wider) },
		func(tx *Tx) error { return tx.Put(narrower) },
		func(tx *Tx) error { return tx.Bind(foreverBinding(a.ID, "c")) },
		func(tx *Tx) error { return tx.Bind(foreverBinding(a.ID, "d")) },
		func(tx *Tx) error { return tx.Bind(foreverBinding(other.ID, "c")) },
		func(tx *Tx) error { return tx.Unbind("/run/none", "c") },
		func(tx *Tx) error { return tx.Delete(a.ID) },
		func(tx *Tx) error { return tx.Put(over) },
		func(tx *Tx) error { return tx.Bind(deadBinding(other.ID, "e")) },
		func(tx *Tx) error { return tx.Sweep() },
	}
}

// foreverBinding is alive after its process is killed: process 1 made it.
func foreverBinding(id grant.ID, container string) grant.Binding {
	b := bindingOf(id, container)
	b.RuntimeRoot = "/run/none"
	b.Creator = processOne
	return b
}

var processOne = func() grant.Process {
	p, err := startOf(1)
	if err != nil {
		panic(err)
	}
	return p
}()

func tellStory(l *Ledger, _ int) error {
	l.Host.Now = func() time.Time { return noon }
	for i, step := range story() {
		if err := l.Update(step); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		fmt.Println("done") // one write: the step was acknowledged
	}
	return nil
}

func printLife(l *Ledger, _ int) error {
	return l.View(func(tx *Tx) error {
		b, err := tx.Bindings.Of(os.Getenv("LEDGER_ROOT"), "c")
		fmt.Println(b.Life)
		return err
	})
}

// failpointBinary is this test binary with failpoints in it.
func failpointBinary(t *testing.T) string {
	if failpoint.Enabled {
		return os.Args[0]
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("misses the go tool, to build itself with failpoints: ", err)
	}
	binary := filepath.Join(t.TempDir(), "ledger.test")
	if out, err := exec.Command(tool, "test", "-c", "-p", "2", "-tags", "failpoint", "-o", binary,
		".").CombinedOutput(); err != nil {
		t.Fatalf("cannot build the test with failpoints: %v\n%s", err, out)
	}
	return binary
}
