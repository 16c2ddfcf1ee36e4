"The command `fastformers`, from files to files: its verbs, its errors, and what it leaves when it is stopped"
import csv, importlib, inspect, io, json, os, random, signal, subprocess, sys, time, types
from pathlib import Path
import pandas as pd, pytest, torch
from transformers import AutoModel, AutoModelForMaskedLM
from fastformers import cli; from fastformers import cli_predict
from fastformers.cli import main
from fastformers.cli_output import new_output, swept, undisturbed
from fastformers.inference.predictor import from_hf
from fastformers.ulmfit.recipe import Recipe, read_recipe
from fastformers.inference.stage_json import read_stage
from fastformers.testing import tiny_arch, tiny_df, tiny_tok

repo = Path(__file__).parent.parent
command = [sys.executable, '-c', 'import sys; from fastformers.cli import main; sys.argv[0] = "fastformers"; sys.exit(main())']
quick = '--bs 8 --epochs 1'.split()

def run(*args): return main([str(o) for o in args])
def hidden(d): return sorted(o.relative_to(d).as_posix() for o in d.rglob('.*'))

@pytest.fixture(scope='module')
def here(tmp_path_factory):
    "Files, a tiny checkpoint, and a classifier that came from them by the command line"
    d = tmp_path_factory.mktemp('cli')
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained(d/'arch'); tiny_tok('bert').save_pretrained(d/'arch')
    tiny_df().to_csv(d/'reviews.csv', index=False); (d/'empty.ini').touch()
    for i,(text,label) in enumerate(zip(tiny_df().text, tiny_df().label)):
        (d/'folder'/label).mkdir(parents=True, exist_ok=True); (d/'folder'/label/f'{i:02}.txt').write_text(text)
    tiny_df().assign(a=tiny_df().text, b='It is a cup.', short=(tiny_df().text.str.len()<50)*1, good=(tiny_df().label=='positive')*1).drop(columns='text').to_csv(d/'wide.csv', index=False)
    assert run('classify', d/'reviews.csv', '--arch', d/'arch', '--output', d/'classifier', *quick)==0
    return d

def test_pretrain_and_adapt_hand_over(here, capsys):
    assert run('pretrain', here/'reviews.csv', here/'folder', '--output', here/'general', '--layers', 2, '--width', 64, '--vocab-sz', 600, '--seq-len', 32, *quick)==0
    assert '→' in (out := capsys.readouterr().out) and f"adapt MORE_TEXTS --arch {here/'general'}" in out
    assert run('adapt', here/'folder', '--arch', here/'general', '--output', here/'domain', '--schedule', 'gradual_unfreeze', *quick)==0
    assert read_stage(here/'domain')['parent']['stage']=='general LM' and AutoModelForMaskedLM.from_pretrained(here/'domain').config.num_hidden_layers==2

def test_classify_ends_with_tables_and_the_next_command(here, capsys):
    assert run('classify', here/'folder', '--arch', here/'arch', '--output', here/'from folder', '--test', here/'reviews.csv', *quick)==0
    out = capsys.readouterr().out
    assert all(o in out for o in ('test accuracy','precision','| mean', f"predict '{here/'from folder'}'"))

@pytest.mark.parametrize('labels,kind', [('short,good','multi'), ('label','single')])
def test_pairs_and_several_labels_are_named_with_commas(here, tmp_path, labels, kind):
    assert run('classify', here/'wide.csv', '--text-col', 'a, b', '--label-col', labels, '--arch', here/'arch', '--output', tmp_path/'c', *quick)==0
    p = from_hf(tmp_path/'c', device='cpu')
    assert p.kind==kind and p.pairs
    out = tmp_path/'out.csv'
    assert run('predict', tmp_path/'c', '--csv', here/'wide.csv', '--text-col', 'a', '--text-col', 'b', '--out', out)==0
    got = pd.read_csv(out, keep_default_na=False)
    assert len(got)==60 and list(got)[-2:]==['predicted_label','predicted_score'] # there is a column label already

def test_predict_says_what_the_learner_would(here, tmp_path, capsys):
    texts = tiny_df().text.tolist()
    want = from_hf(here/'classifier', device='cpu')(texts)
    tiny_df()[['text']].to_csv(tmp_path/'in.csv', index=False)
    assert run('predict', here/'classifier', '--csv', tmp_path/'in.csv', '--out', tmp_path/'out.csv')==0
    got = pd.read_csv(tmp_path/'out.csv', keep_default_na=False)
    assert got.text.tolist()==texts and got.label.tolist()==[o['label'] for o in want]
    assert got.score.tolist()==pytest.approx([o['score'] for o in want], abs=1e-5)
    assert '| label ' in capsys.readouterr().out
    assert run('predict', here/'classifier', '--top-k', 2, *texts[:2])==0 # on either side of a flag
    assert 'label_2' in (out := capsys.readouterr().out) and texts[1] in out

def test_standard_input_is_labelled_line_by_line_without_fastai(here):
    code = f"import sys\nfrom fastformers.cli import main\nr = main(['predict', {str(here/'classifier')!r}, '-'])\nassert 'fastai' not in sys.modules\nsys.exit(r)"
    r = subprocess.run([sys.executable, '-c', code], input='\ufeffGreat sound.\n\nCafé, naïve\t😡\n', capture_output=True, text=True, encoding='utf-8', cwd=repo, env={**os.environ, 'PYTHONIOENCODING':'latin-1'})
    assert r.returncode==0, r.stderr
    assert [o.split('\t',2)[2] for o in r.stdout.split('\n')[:-1]]==['Great sound.','','Café, naïve\t😡'] and r.stderr.endswith('1 of 3 texts is empty; a label of nothing means nothing\n')

def test_a_large_csv_is_a_stream(here):
    "Rows are written while later ones are not read yet"
    p,seen = from_hf(here/'classifier', device='cpu'),[]
    p.chunk = 10
    rows = ([i,'a text'] for i in range(100) if seen.append(i) is None)
    got = cli_predict.labelled(p, rows, lambda r: r[1])
    for i,(r,o) in zip(range(5), got): assert r[0]==i
    assert len(seen)<=20

def test_a_classifier_for_everybody(here, tmp_path):
    "With Hugging Face's own head, transformers opens what the command wrote"
    from transformers import pipeline
    assert run('classify', here/'reviews.csv', '--arch', here/'arch', '--head', 'hf', '--output', tmp_path/'c', *quick)==0
    a,b = pipeline('text-classification', str(tmp_path/'c'), device='cpu')('Great sound.')[0],from_hf(tmp_path/'c', device='cpu')('Great sound.')[0]
    assert a['label']==b['label'] and a['score']==pytest.approx(b['score'], abs=1e-4)

def test_each_choice_of_a_classifier_is_a_flag(here, tmp_path, capsys):
    assert run('classify', here/'reviews.csv', '--arch', here/'arch', '--output', tmp_path/'c', '--layers', '-2,-1', '--adapters', 'bitfit', '--aux-lm', '.25', *quick)==0
    assert '| [-2, -1] | bitfit   | 0.25   |' in capsys.readouterr().out
    facts = read_stage(tmp_path/'c')['recipe']
    assert (facts['layers'], facts['adapters'], facts['aux_lm'])==([-2,-1], 'bitfit', .25)
    assert run('predict', tmp_path/'c', 'Great sound.')==0
    old,new = (AutoModel.from_pretrained(o).state_dict() for o in (here/'arch', tmp_path/'c'))
    moved = {k for k in new if not k.startswith('pooler') and not torch.equal(old[k], new[k])} # a pooler is nobody's: no head reads it
    assert moved and all(k.endswith('bias') for k in moved)

def test_export_is_the_model_alone(here, tmp_path, capsys):
    assert run('export', here/'classifier', tmp_path/'c')==0 and run('export', here/'arch', tmp_path/'lm')==0
    assert not (tmp_path/'c'/'stage.json').exists() and 'from_hf' in (tmp_path/'c'/'README.md').read_text()
    assert from_hf(tmp_path/'c', device='cpu')('Great sound.')==from_hf(here/'classifier', device='cpu')('Great sound.')
    AutoModelForMaskedLM.from_pretrained(tmp_path/'lm'); AutoModel.from_pretrained(tmp_path/'c')
    assert run('export', here/'classifier', tmp_path/'c')==2 and not hidden(tmp_path)
    size = (tmp_path/'c'/'model.safetensors').stat().st_size
    assert run('export', tmp_path/'c', tmp_path/'c', '--half', '--force')==2 # its own source
    assert run('export', here/'classifier', tmp_path/'c', '--half', '--force')==0 and not hidden(tmp_path)
    assert (tmp_path/'c'/'model.safetensors').stat().st_size < .6*size
    (tmp_path/'c'/'thesis.tex').touch()
    assert run('export', here/'classifier', tmp_path/'c', '--force')==2 and (tmp_path/'c'/'thesis.tex').exists()

def test_a_predicted_csv_is_the_same_table_in_all_else(here, tmp_path, caplog):
    texts = ['Cold\rsoup', 'Two\r\nlines', 'a "word", quoted', '', 'Café 😡']
    pd.DataFrame({'id':['001','002','003','004','005'], 'text':texts}).to_csv(tmp_path/'in.csv', index=False, lineterminator='\r\n') # quotes a carriage return
    assert run('predict', here/'classifier', '--csv', tmp_path/'in.csv', '--out', tmp_path/'out.csv')==0
    assert '1 of 5 texts is empty' in caplog.text
    got = pd.read_csv(tmp_path/'out.csv', keep_default_na=False, dtype=str)
    assert got.text.tolist()==texts and got.id.tolist()==['001','002','003','004','005']

@pytest.mark.parametrize('args,words', [
    (['predict', 'classifier', '--csv', 'semi.csv', '--text-col', 'text'], "--sep ';'"),
    (['predict', 'classifier', '--csv', 'reviews.csv', '--text-col', 'txt'], 'did you mean text?'),
    (['predict', 'arch', 'a text'], 'no classifier'), (['predict', 'classifier', '--csv', 'bad.csv'], 'line 3')])
def test_a_mistake_in_names_is_found_before_torch_is_needed(here, capsys, monkeypatch, args, words):
    monkeypatch.chdir(here)
    (here/'semi.csv').write_text('id;text\n1;Good, I think\n'); (here/'bad.csv').write_text('text\nfine\nnot, quoted\n')
    def never(*args): raise AssertionError('the model was opened')
    monkeypatch.setattr(cli_predict, '_open_classifier', never)
    assert run(*args)==2 and words in capsys.readouterr().err

@pytest.mark.skipif(os.name=='nt', reason='named pipes')
def test_what_cannot_be_read_twice_is_refused(here, tmp_path, capsys):
    r,w = os.pipe(); os.write(w, b'text\nfine\n'); os.close(w)
    assert run('predict', here/'classifier', '--csv', f'/dev/fd/{r}')==2 and 'read twice' in capsys.readouterr().err

def test_each_line_that_arrives_is_answered_at_once(here, capsys, monkeypatch):
    "A program that waits for an answer before it asks again gets one"
    class Lines(io.RawIOBase):
        parts = [b'Great ', b'sound.\r\nAwful.\n', 'naïve'.encode('cp1252')]
        def readable(self): return True
        def readinto(self, b):
            self.said.append(capsys.readouterr().out.count('\n'))
            part = self.parts.pop(0) if self.parts else b''
            b[:len(part)] = part
            return len(part)
        said = []
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BufferedReader(Lines())))
    assert run('predict', here/'classifier', '-', '--encoding', 'cp1252')==0
    assert Lines.said==[0,0,2,0] and capsys.readouterr().out.endswith('\tnaïve\n')

def test_only_what_the_command_made_is_removed(tmp_path):
    (tmp_path/'out').mkdir()
    with pytest.raises(KeyboardInterrupt), new_output(tmp_path/'a.csv.gz') as other, swept(tmp_path/'a.csv'), swept(tmp_path/'out'), new_output(tmp_path/'a.csv') as mine:
        mine.touch(); other.touch(); (tmp_path/'.a.csv.notes').touch(); (tmp_path/'out'/'.ipynb_checkpoints').mkdir()
        with swept(tmp_path/'deep'/'c'): (tmp_path/'deep'/'c').mkdir(parents=True)
        assert other.exists() and not (tmp_path/'deep').exists()
        raise KeyboardInterrupt
    assert sorted(o.relative_to(tmp_path).as_posix() for o in tmp_path.rglob('*'))==['.a.csv.notes','out','out/.ipynb_checkpoints']

@pytest.mark.parametrize('args,words', [
    (['clasify'], ['invalid choice', 'did you mean classify?']),
    (['classify', 'reviews.csv', '--ouptut', 'x'], ['--ouptut is not a flag', 'did you mean --output?']),
    (['classify', 'reviews.csv', '--output', 'x', '--batch-size', '8'], ['did you mean --bs?']),
    (['classify', 'reviews.csv', '--output', 'x', '--lr', 'inf'], ['expected a number']),
    (['predict', 'classifier', 'x', '--max-tokens', '-4'], ['--max-tokens must be 1 or more']),
    (['predict', 'classifier', 'x', '--top-k', '0'], ['--top-k must be 1 or more, or none']),
    (['predict', 'classifier', 'x', '--threshold', '.7'], ['one label']),
    (['predict', 'classifier', 'x', '--sep', ';'], ['--sep goes with --csv']),
    (['predict', 'classifier', 'x', '--text-col', 'a'], ['--text-col goes with --csv']),
    (['predict', 'classifier', 'x', '--encoding', 'cp1252'], ['--encoding goes with --csv']),
    (['predict', 'classifier', 'x', '--device', 'quantum'], ['--device quantum']),
    (['predict', 'classifier', 'reviews.csv'], ['--csv reviews.csv']),
    (['predict', 'classifier', '--csv', 'folder'], ['a directory']),
    (['predict', 'classifier', '--csv', 'reviews.csv', '--encoding', 'klingon'], ['klingon']),
    (['predict', 'classifier', '--csv', 'reviews.csv', '--out', 'x.parquet'], ['.csv or .tsv']),
    (['predict', 'nowhere', 'x'], ['does not exist']),
    (['predict', 'me/nobody', 'x'], ['me/nobody does not exist', 'Nor is it the hub id', 'snapshot_download']),
    (['predict', '.', 'x'], ['models in arch, classifier']),
    (['export', 'classifier', 'classifier', '--force'], ['holds more than the model']),
    (['run', 'empty.ini'], ['empty.ini holds no recipe']),
    (['classify', 'reviews.csv', '--output', 'x', '--epoch', '3'], ['did you mean --epochs?']),
    (['classify', 'reviews.csv', '--output', 'x', '--epochs', 'three'], ['expected a number']),
    (['classify', 'reviews.csv', '--output', 'x', '--label-col', 'lable'], ['did you mean label?', 'Columns: text, label, is_valid']),
    (['classify', 'reveiws.csv', '--output', 'x'], ['reviews.csv']),
    (['classify', 'reviews.csv', '--output', 'classifier'], ['--force']),
    (['classify', 'reviews.csv', '--output', 'folder', '--force'], ['holds no stage.json']),
    (['classify', 'reviews.csv', '--output', 'reviews.csv/x'], ['cannot write']),
    (['classify', 'reviews.csv', '--output', 'x', '--epochs', '1', '--minutes', '1'], ['one of them']),
    (['classify', 'reviews.csv', '--output', 'x', '--arch', 'arch', '--lr', '0'], ['--lr must be more than 0']),
    (['classify', 'reviews.csv', '--output', 'x', '--arch', 'arch', '--schedule', 'slow'], ['gradual_unfreeze']),
    (['classify', 'reviews.csv', '--output', 'x', '--arch', 'nowhere/at-all'], ['nowhere/at-all']),
    (['classify', 'nowhere.csv', '--output', 'x', '--arch', 'arch', '--adapters', 'tiny'], ["--adapters 'tiny' is unknown", 'bottleneck, lora, bitfit']),
    (['classify', 'nowhere.csv', '--output', 'x', '--arch', 'arch', '--aux-lm', '-1'], ['--aux-lm is the weight', 'more than 0', 'got -1']),
    (['classify', 'nowhere.csv', '--output', 'x', '--arch', 'arch', '--layers', '-1,x'], ['--layers is an index', "got '-1,x'"]),
    (['classify', 'nowhere.csv', '--output', 'x', '--arch', 'arch', '--layers', 'mix', '--head', 'hf'], ['leave --layers out, or --head']),
    (['classify', 'reviews.csv', '--output', 'x', '--arch', 'arch', '--layers', '9'], ['9 is no layer', '0 (embeddings) to 3']),
    (['adapt', 'reviews.csv', '--output', 'x', '--arch', 'arch', '--objective', 'mml'], ['mlm, clm']),
    (['pretrain', 'reviews.csv', '--output', 'x', '--text-col', 'review'], ['Columns: text']),
    (['predict', 'classifier'], ['expected texts']),
    (['predict', 'arch', 'a text'], ['classify LABELLED.csv --arch arch']),
    (['predict', 'classifier', '--csv', 'reviews.csv', '--out', 'reviews.csv', '--force'], ['the file that is read']),
    (['export', 'folder', 'x'], ['config.json'])])
def test_a_mistake_is_one_line_and_leaves_nothing(here, capsys, monkeypatch, args, words):
    monkeypatch.chdir(here)
    before = sorted(o.name for o in here.iterdir())
    try: code = main(args)
    except SystemExit as e: code = e.code
    out,err = capsys.readouterr()
    last = err.strip().splitlines()[-1]
    assert code==2 and last.startswith('fastformers: error: ') and all(o in last for o in words), err
    assert 'Traceback' not in err and out=='' and sorted(o.name for o in here.iterdir())==before

def test_help_is_fast_and_says_every_flag():
    start = time.time()
    r = subprocess.run([*command, 'classify', '--help'], capture_output=True, text=True, cwd=repo, env={**os.environ, 'COLUMNS':'200'})
    took = time.time()-start
    from fastformers.ulmfit.run import fine_tune_classifier
    flags = {o.replace('_','-') for o in inspect.signature(fine_tune_classifier).parameters}-{'df','path','cbs','name'}
    assert all(f'--{o} ' in r.stdout for o in flags) and '(default: 4)' in r.stdout
    assert took<4 # importing fastai alone would take longer

def stop_after(seconds, sig, *args):
    "Exit code and standard error of the command when `sig` comes after `seconds`"
    p = subprocess.Popen([*command, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=repo)
    try: p.wait(seconds)
    except subprocess.TimeoutExpired: p.send_signal(sig)
    _,err = p.communicate(timeout=60)
    return p.returncode,err

@pytest.mark.skipif(os.name=='nt', reason='signals')
@pytest.mark.parametrize('sig', [signal.SIGINT, signal.SIGTERM])
def test_stopped_at_any_moment_nothing_is_half_written(here, tmp_path, sig):
    args = 'classify', here/'reviews.csv', '--arch', here/'arch', '--bs', 8, '--epochs', 4
    for i in range(2):
        d = tmp_path/str(i); d.mkdir()
        code,err = stop_after(random.uniform(1.5, 7), sig, *args, '--output', d/'deep'/'c')
        assert code in (0, 128+sig, -sig), err # the last: before the command has begun, on a slow machine
        if code>0: assert ('nothing is half-written' in err or 'to go on: fastformers classify --resume' in err) and 'Traceback' not in err
        assert (d/'deep'/'c.checkpoints').exists()==('to go on' in err)
        if not code or (d/'deep'/'c').exists(): from_hf(d/'deep'/'c', device='cpu')
        assert not hidden(d)

@pytest.mark.parametrize('force', [False, True])
def test_stopped_while_it_saves_the_old_one_stays(here, tmp_path, monkeypatch, capsys, force):
    import fastformers.learner.core
    args = 'classify', here/'reviews.csv', '--arch', here/'arch', '--output', tmp_path/'c', *quick
    if force: assert run(*args)==0
    old = sorted((tmp_path/'c').rglob('*'))
    def stop(*args, **kwargs): raise KeyboardInterrupt
    with monkeypatch.context() as m:
        m.setattr(fastformers.learner.core, 'write_stage', stop)
        assert run(*args, *(['--force'] if force else []))==130 and f"to go on: fastformers classify --resume {here/'reviews.csv'}" in capsys.readouterr().err
    assert sorted((tmp_path/'c').rglob('*'))==old and sorted(o.name for o in tmp_path.iterdir())==[*(['c'] if force else []), 'c.checkpoints']
    assert run(*args, '--resume')==0 and [o.name for o in tmp_path.iterdir()]==['c'] and not hidden(tmp_path)

@pytest.mark.skipif(os.name=='nt', reason='signals')
def test_a_stopped_prediction_leaves_no_file(here, tmp_path):
    with open(tmp_path/'in.csv', 'w', newline='') as f: csv.writer(f).writerows([['text'], *[['Great sound, light, and the battery lasts for two days. '*8]]*60_000])
    code,err = stop_after(7, signal.SIGINT, 'predict', here/'classifier', '--csv', tmp_path/'in.csv', '--out', tmp_path/'out.csv')
    assert code==130, err
    assert [o.name for o in tmp_path.iterdir()]==['in.csv']

@pytest.fixture
def ctrl_c():
    "Python's own handler of Ctrl-C, even if this process was started without"
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)

def test_a_signal_waits_for_a_rename(ctrl_c):
    done = []
    with pytest.raises(KeyboardInterrupt):
        with undisturbed(): signal.raise_signal(signal.SIGINT); done.append(1)
    assert done==[1] and signal.getsignal(signal.SIGINT) is signal.default_int_handler

def test_a_signal_waits_for_an_import(ctrl_c, tmp_path, monkeypatch):
    (tmp_path/'slow_import_.py').write_text('import signal\nsignal.raise_signal(signal.SIGINT)\ndone = True\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        with cli._signals():
            assert importlib.import_module('slow_import_').done
            time.sleep(5)
            raise AssertionError('it never came')
    assert 'slow_import_' in sys.modules # complete

@pytest.fixture
def stage(monkeypatch):
    "What the run of a recipe does after it has read its data, instead of three stages"
    def set_to(f): monkeypatch.setitem(sys.modules, 'fastformers.ulmfit.run', types.SimpleNamespace(ulmfit=f))
    return set_to

def test_of_a_run_that_failed_nothing_stays_but_what_others_made(here, tmp_path, stage, capsys):
    (tmp_path/'my.ini').write_text(f"[data]\nsource = {here/'reviews.csv'}\n[run]\noutput = {tmp_path/'deep'/'out'}\n")
    def fails(*args, **kwargs): raise KeyboardInterrupt
    stage(fails)
    assert run('run', tmp_path/'my.ini')==130 and 'no stage was finished' in capsys.readouterr().err
    assert [o.name for o in tmp_path.iterdir()]==['my.ini']
    def fails(*args, path, **kwargs): (path/'.q.notes').touch(); raise ValueError('x')
    stage(fails)
    assert run('run', tmp_path/'my.ini')==2 and [o.name for o in (tmp_path/'deep'/'out').iterdir()]==['.q.notes']

def test_a_run_replaces_no_settings_that_are_not_its_own(here, tmp_path, stage, capsys):
    (out := tmp_path/'out').mkdir(); (out/'settings.ini').write_text('[DEFAULT]\nlib_name = mine\n')
    (tmp_path/'my.ini').write_text(f"[data]\nsource = {here/'reviews.csv'}\n[run]\noutput = {out}\n")
    def fails(*args, path, **kwargs): assert not (path/'report.json').exists(); raise ValueError('x')
    stage(fails)
    for o in ([], ['--force']): assert run('run', tmp_path/'my.ini', *o)==2 and 'holds no run' in capsys.readouterr().err
    assert 'mine' in (out/'settings.ini').read_text()
    (out/'settings.ini').write_text(Recipe().to_ini()); (out/'report.json').write_text('{}') # a run
    assert run('run', tmp_path/'my.ini')==2 and 'finished run' in capsys.readouterr().err
    assert run('run', tmp_path/'my.ini', '--force')==2 and not (out/'report.json').exists() # the old report goes first

def test_the_end_of_the_world_around_is_not_an_error_of_ours(capsys, monkeypatch):
    from safetensors import SafetensorError
    def verb(e):
        def f(args): raise e
        monkeypatch.setattr(cli, 'run_recipe', f)
        return run('demo')
    assert verb(SafetensorError('I/O error: No space left on device'))==2 and 'disk full' in capsys.readouterr().err
    monkeypatch.setattr(os, 'dup2', lambda *args: None)
    assert verb(BrokenPipeError())==0 and capsys.readouterr().err==''
    with monkeypatch.context() as m:
        m.setattr(sys, 'stdout', None)
        assert run('demo')==2
    assert 'standard output is closed' in capsys.readouterr().err

def test_a_module_that_is_run_is_the_command():
    r = subprocess.run([sys.executable, '-m', 'fastformers.cli', 'nonsense'], capture_output=True, text=True, cwd=repo)
    assert r.returncode==2 and 'invalid choice' in r.stderr

def test_progress_is_for_terminals_only(here, tmp_path):
    r = subprocess.run([*command, 'classify', here/'reviews.csv', '--arch', here/'arch', '--output', tmp_path/'c', *quick], capture_output=True, text=True, cwd=repo)
    assert r.returncode==0 and '\r' not in r.stdout+r.stderr and 'epoch  ' not in r.stdout and r.stdout.startswith('| stage')
    assert all(o[:8].count(':')==2 for o in r.stderr.splitlines()), r.stderr # log lines with their time, nothing else

@pytest.fixture(scope='module')
def timed(here):
    "A run of two seeds with a budget of time, which is enough for 1.3 epochs"
    r = Recipe().replace(run=dict(output='timed', seed='1, 2'), data=dict(source='reviews.csv'), model=dict(arch='./arch'), lm=dict(minutes=.03, bs=8, seq_len=32), classifier=dict(epochs=1, bs=8))
    (here/'timed.ini').write_text(r.to_ini())
    with pytest.MonkeyPatch.context() as m:
        m.setattr('fastformers.ulmfit.stage.epochs_for', lambda learn, minutes: 1.3)
        assert run('run', here/'timed.ini')==0
    return here/'timed'

def test_a_run_with_a_budget_can_be_repeated(timed, here):
    again = read_recipe(timed/'settings.ini')
    assert again.lm.minutes is None and again.lm.epochs==read_stage(timed/'target_lm')['epochs']==1.3 and '0.03' in (timed/'settings.ini').read_text()
    assert run('run', timed/'settings.ini', '--output', here/'again')==0
    a,b = (json.loads((o/'report.json').read_text())['stages'][0] for o in (timed, here/'again'))
    assert a['metrics']==pytest.approx(b['metrics'], rel=1e-4)

def test_force_removes_what_the_earlier_run_left(timed, here):
    (timed/'notes_seed2').mkdir(); (timed/'classifier_seed9').mkdir() # not stages
    assert (timed/'classifier_seed2'/'stage.json').is_file()
    assert run('run', timed/'settings.ini', '--seed', '1', '--force')==0
    assert {o.name for o in timed.iterdir()}=={'target_lm','classifier','classifier_without_lm','notes_seed2','classifier_seed9','report.json','report.md','report.png','settings.ini'}

def test_a_recipe_names_pairs_and_several_labels(here):
    r = Recipe().replace(run=dict(output='pairs'), data=dict(source='wide.csv', text_col='a, b', label_col='short, good'), model=dict(arch='./arch'),
                         lm=dict(epochs=1, bs=8, seq_len=32), classifier=dict(epochs=1, bs=8))
    (here/'pairs.ini').write_text(r.to_ini())
    assert run('run', here/'pairs.ini')==0
    p = from_hf(here/'pairs'/'classifier', device='cpu')
    assert p.pairs and sorted(p.labels)==['good','short'] and read_recipe(here/'pairs'/'settings.ini').data.text_col=='a, b'
