// Locks of Go libraries, measured as dibs-bench measures: lock SCENARIO PEER [key=value]...
//
// go-zookeeper: its Lock; etcd-go: concurrency.Mutex of etcd's own client. Workers are goroutines with a client each.
// The arguments, the two steps and the line of JSON are those of dibs-bench.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/samuel/go-zookeeper/zk"
	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

const giveUp = 20 // failed calls

type locker interface {
	Lock() error
	Unlock() error
}

type quiet struct{}

func (quiet) Printf(string, ...interface{}) {}

type etcdLock struct{ mutex *concurrency.Mutex }

func (l etcdLock) Lock() error   { return l.mutex.Lock(context.Background()) }
func (l etcdLock) Unlock() error { return l.mutex.Unlock(context.Background()) }

var plan = map[string]string{}
var titles = map[string]string{"go-zookeeper": "go-zookeeper Lock", "etcd-go": "Go concurrency.Mutex"}

func number(key string) int {
	n, _ := strconv.Atoi(plan[key])
	return n
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func openZookeeper(key string) locker {
	client, events, err := zk.Connect([]string{"127.0.0.1:" + plan["node_port"]}, 10*time.Second, zk.WithLogger(quiet{}))
	check(err)
	for event := range events {
		if event.State == zk.StateHasSession {
			break
		}
	}
	go func() {
		for range events {
		}
	}()
	return zk.NewLock(client, "/golock/"+key, zk.WorldACL(zk.PermAll))
}

func openEtcd(key string) locker {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:" + plan["node_port"]}, DialTimeout: 5 * time.Second})
	check(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	check(err)
	return etcdLock{concurrency.NewMutex(session, "/golock/"+key)}
}

type stock struct {
	connection net.Conn
	lines      *bufio.Reader
}

func openStock() *stock {
	c, err := net.Dial("tcp", "127.0.0.1:"+plan["stock_port"])
	check(err)
	return &stock{c, bufio.NewReader(c)}
}

func (s *stock) ask(command string) string {
	fmt.Fprintf(s.connection, "%s\r\n", command)
	line, _ := s.lines.ReadString('\n')
	if strings.HasPrefix(line, "$") {
		line, _ = s.lines.ReadString('\n')
	}
	return strings.TrimSpace(line)
}

func (s *stock) read() int {
	n, err := strconv.Atoi(s.ask("GET stock"))
	check(err)
	return n
}

func (s *stock) write(n int) { s.ask("SET stock " + strconv.Itoa(n)) }

type worker struct {
	id            int
	lock          locker
	stock         *stock
	inside        *int64
	turns, errors int
	last          time.Time
	times         []float64
}

var violations, owner, changes int64

func (w *worker) in(counted bool) {
	if atomic.SwapInt64(w.inside, int64(w.id+1)) != 0 {
		atomic.AddInt64(&violations, 1)
	}
	if atomic.SwapInt64(&owner, int64(w.id+1)) != int64(w.id+1) && counted {
		atomic.AddInt64(&changes, 1)
	}
}

func (w *worker) out() {
	if atomic.SwapInt64(w.inside, 0) != int64(w.id+1) {
		atomic.AddInt64(&violations, 1)
	}
}

func (w *worker) fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	w.errors++
}

func (w *worker) turn(end time.Time, wait bool) {
	asked := time.Now()
	if err := w.lock.Lock(); err != nil {
		w.fail(err)
		return
	}
	had := time.Now()
	w.in(had.Before(end))
	if w.stock != nil {
		w.stock.write(w.stock.read() - 1)
	}
	w.out()
	if err := w.lock.Unlock(); err != nil {
		w.fail(err)
	}
	done := time.Now()
	if done.After(end) && w.stock == nil {
		return
	}
	w.turns++
	w.last = done
	if wait {
		done = had
	}
	w.times = append(w.times, done.Sub(asked).Seconds()*1e6)
}

func open(scenario, peer string, id int, sections []int64) *worker {
	slot := id
	if scenario == "c" || scenario == "d" {
		slot = 0
	}
	key := fmt.Sprintf("bench-%s-%d", scenario, slot)
	w := &worker{id: id, inside: &sections[slot*8]}
	if peer == "go-zookeeper" {
		w.lock = openZookeeper(key)
	} else {
		w.lock = openEtcd(key)
	}
	if scenario == "d" {
		w.stock = openStock()
	}
	for i := 0; i < map[string]int{"a": 20, "b": 3}[scenario]; i++ {
		check(w.lock.Lock())
		check(w.lock.Unlock())
	}
	return w
}

func step(name string) {
	if plan["steps"] == "1" {
		fmt.Println(name)
		_, err := bufio.NewReader(os.Stdin).ReadString('\n')
		check(err)
	}
}

func used() float64 {
	var r syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &r))
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e3
}

func main() {
	scenario, peer := os.Args[1], os.Args[2]
	for _, word := range os.Args[3:] {
		pair := strings.SplitN(word, "=", 2)
		plan[pair[0]] = pair[1]
	}
	count, limit := number("workers"), 1<<60
	seconds, _ := strconv.ParseFloat(plan["seconds"], 64)
	sections := make([]int64, count*8)
	workers := make([]*worker, count)
	for i := range workers {
		workers[i] = open(scenario, peer, i, sections)
	}
	if scenario == "d" {
		limit = number("rounds")
		openStock().write(count * limit)
	}
	step("ready")
	changes, owner = 0, 0
	cpu, start := used(), time.Now()
	end := start.Add(time.Duration(seconds * 1e9))
	var group sync.WaitGroup
	for _, w := range workers {
		group.Add(1)
		go func(w *worker) {
			defer group.Done()
			for w.turns < limit && w.errors < giveUp && time.Now().Before(end) {
				w.turn(end, scenario == "c" || scenario == "d")
			}
		}(w)
	}
	group.Wait()
	cpu = used() - cpu
	step("finished")
	os.Exit(report(scenario, peer, workers, start, seconds, cpu))
}

func report(scenario, peer string, workers []*worker, start time.Time, seconds, cpu float64) int {
	var times []float64
	turns, errors, most, least := 0, 0, 0, 1<<60
	if scenario == "d" {
		seconds = 1e-9
	}
	for _, w := range workers {
		times = append(times, w.times...)
		turns += w.turns
		errors += w.errors
		if w.turns > most {
			most = w.turns
		}
		if w.turns < least {
			least = w.turns
		}
		if s := w.last.Sub(start).Seconds(); scenario == "d" && s > seconds {
			seconds = s
		}
	}
	sort.Float64s(times)
	at := func(share float64) float64 {
		if len(times) == 0 {
			return 0
		}
		return times[int(float64(len(times)-1)*share)]
	}
	operations := float64(turns)
	if scenario == "c" {
		operations = float64(changes)
	}
	row := map[string]interface{}{"peer": peer, "title": titles[peer], "scenario": scenario, "shape": "each", "workers": len(workers),
		"turns": turns, "changes": changes, "seconds": seconds, "rate": operations / seconds, "p50_us": at(.5), "p99_us": at(.99),
		"most": most, "least": least, "cpu_us": cpu / (operations + 1e-9), "errors": errors, "violations": violations}
	exact := true
	if scenario == "d" {
		left := openStock().read()
		exact = left == len(workers)*number("rounds")-turns
		row["stock_left"], row["complete"], row["exact"] = left, left == 0, exact
	}
	line, err := json.Marshal(row)
	check(err)
	fmt.Println(string(line))
	if errors > 0 || violations > 0 || !exact || turns == 0 {
		return 1
	}
	return 0
}
