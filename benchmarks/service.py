"""64 clients ask the web service of `examples/service.py` for two minutes: answers a second, waiting times, errors, memory

    pip install "fastformers[serve]"
    python benchmarks/service.py               # needs no data

MiniLM with a classifier that is not trained, in float32, on one thread. Each client sends one to four short texts, reads the answers and asks again. The clients run in one process beside the service.
Labels and scores (to 1e-5) must be those of `from_hf` in a process of its own.
"""
import argparse, http.client, json, os, random, socket, subprocess, sys, tempfile, threading, time
from pathlib import Path
os.environ.update(TOKENIZERS_PARALLELISM='false', HF_HUB_OFFLINE='1')
os.environ.setdefault('OMP_NUM_THREADS', '1')
import numpy as np
from timing import rss_anon
from common import here, save

def write_classifier(path):
    "Write MiniLM with a new head to the directory `path`: its texts, and the answers of `from_hf`"
    from fastformers.data.block import classifier_dls
    from fastformers.inference.predictor import from_hf
    from fastformers.learner.core import classifier_learner
    from fastformers.text.corpora import intents
    df = intents(400)
    classifier_learner(classifier_dls(df, 'minilm', device='cpu'), 'minilm', precision='fp32').to_hf(path)
    texts = df.text.tolist()
    return texts, from_hf(path, device='cpu')(texts)

class Client(threading.Thread):
    "Ask again and again until `stop`"
    def __init__(self, port, texts, want, seed, stop):
        super().__init__()
        self.port,self.texts,self.want,self.rng,self.stop = port,texts,want,random.Random(seed),stop
        self.waits,self.n,self.errors,self.different = [],0,0,0
    def ask(self, con, at):
        con.request('POST', '/predict', json.dumps({'texts':[self.texts[i] for i in at]}), {'content-type':'application/json'})
        r = con.getresponse()
        return r.status, json.loads(r.read())
    def run(self):
        con = http.client.HTTPConnection('127.0.0.1', self.port, timeout=60)
        while time.time()<self.stop:
            at,start = self.rng.sample(range(len(self.texts)), self.rng.randint(1, 4)),time.perf_counter()
            try: status,got = self.ask(con, at)
            except (OSError,http.client.HTTPException): con.close(); self.errors += 1; continue
            if status!=200: self.errors += 1; continue
            self.waits.append(time.perf_counter()-start)
            self.n += len(at)
            self.different += [o['label'] for o in got]!=[self.want[i]['label'] for i in at] or max(abs(o['score']-self.want[i]['score']) for o,i in zip(got, at))>1e-5

def cpu_seconds(pid): return sum(map(int, Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[11:13]))/os.sysconf('SC_CLK_TCK')

def main():
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('--clients', type=int, default=64)
    p.add_argument('--seconds', type=int, default=120)
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as d, socket.create_server(('127.0.0.1', 0)) as s:
        texts,want = write_classifier(Path(d)/'model')
        port = s.getsockname()[1]
        s.close()
        command = f'-W ignore -m uvicorn service:app --app-dir {here.parent}/examples --port {port} --log-level error'.split()
        server = subprocess.Popen([sys.executable, *command], env={**os.environ, 'FASTFORMERS_MODEL':f'{d}/model'})
        try:
            def run(seconds): # all clients
                cs = [Client(port, texts, want, i, time.time()+seconds) for i in range(args.clients)]
                for o in cs: o.start()
                for o in cs: o.join()
                return cs
            while server.poll() is None and not run(1)[0].waits: pass # until it answers
            run(5)
            begin,start,cpu = rss_anon(server.pid),time.time(),cpu_seconds(server.pid)
            cs = run(args.seconds)
            s,end,cpu = time.time()-start,rss_anon(server.pid),cpu_seconds(server.pid)-cpu
        finally: server.terminate(); server.wait()
    waits = np.sort(np.concatenate([o.waits for o in cs]))
    n = sum(o.n for o in cs)
    res = {'requests/s':len(waits)/s, 'texts/s':n/s, 'texts/s of processor time':n/cpu, 'p50 ms':1e3*np.quantile(waits, .5), 'p99 ms':1e3*np.quantile(waits, .99), 'max ms':1e3*waits[-1],
           'MiB at begin':begin, 'MiB at end':end}
    res = {k:round(float(v), 1) for k,v in res.items()} | {'requests':len(waits), 'errors':sum(o.errors for o in cs), 'different answers':sum(o.different for o in cs)}
    print(*(f'{k:28}{v}' for k,v in res.items()), sep='\n')
    save('service', args, {**vars(args), 'precision':'fp32', 'threads':1}, res)

if __name__=='__main__': main()
