"The command `fastformers`, from files to files: results, errors, what a stopped command leaves"
import io, json, os, re, runpy, shlex, shutil, subprocess, sys, tomllib
from pathlib import Path
from types import SimpleNamespace
import pandas as pd, pytest, torch, yaml
from transformers import AutoModelForMaskedLM
from fastformers import cli
from fastformers.commands import answer
from fastformers.cli import main
from fastformers.files import mark_checkpoints, write_text
from fastformers.inference.predictor import from_hf
from fastformers.tasks.core import tasks
from fastformers.inference.stage_json import read_stage
from fastformers.models.load import load_config
from fastformers.stats import Verdict
from fastformers.testing import tiny_arch, tiny_df, tiny_spans, tiny_tags, tiny_tok
from fastformers.text.readers import read_texts
from fastformers.text.corpora import intents

repo = Path(__file__).parent.parent
quick = '--bs 8 --epochs 1'.split()

def run(*args): return main([str(o) for o in args])
def hidden(d): return sorted(o.name for o in d.rglob('.*'))

@pytest.fixture(scope='module')
def here(tmp_path_factory):
    "Files, a tiny checkpoint, and a classifier that came from them by the command line"
    d = tmp_path_factory.mktemp('cli')
    torch.manual_seed(0)
    AutoModelForMaskedLM.from_config(tiny_arch('bert')).save_pretrained(d/'arch'); tiny_tok('bert').save_pretrained(d/'arch')
    df = tiny_df()
    df.to_csv(d/'reviews.csv', index=False)
    df.assign(a=df.text, b='It is a cup.', good=(df.label=='positive')*1, short=(df.text.str.len()<50)*1).drop(columns='text').to_csv(d/'wide.csv', index=False)
    for i,(text,label) in enumerate(zip(df.text, df.label)): write_text(d/'folder'/label/f'{i:02}.txt', text)
    write_text(d/'words.conll', '\n\n'.join('\n'.join(map(' '.join, zip(*r))) for r in zip(tiny_tags().text, tiny_tags().label)))
    write_text(d/'empty.ini', '')
    assert run('classify', d/'reviews.csv', '--arch', d/'arch', '--output', d/'classifier', *quick)==0
    return d

# Training

def test_pretrain_and_adapt_hand_over(here, capsys):
    assert run('pretrain', here/'reviews.csv', here/'folder', '--output', here/'general', '--size', 2, '--width', 64, '--vocab-sz', 600, '--seq-len', 32, *quick)==0
    assert f"adapt TEXTS --arch {here/'general'}" in capsys.readouterr().out
    assert run('adapt', here/'folder', '--arch', here/'general', '--output', here/'domain', '--schedule', 'gradual_unfreeze', *quick)==0
    assert read_stage(here/'domain')['parent']['stage']=='general LM' and AutoModelForMaskedLM.from_pretrained(here/'domain').config.num_hidden_layers==2

def test_adapt_says_whether_the_encoder_became_better(here, capsys, tmp_path):
    args = 'adapt', here/'folder', '--arch', here/'arch', '--labelled', here/'reviews.csv', *quick
    assert run(*args, '--output', tmp_path/'lm')==0
    out,err = capsys.readouterr()
    assert 'A linear model on frozen vectors, cross-validated on' in out and f'classify {here/"reviews.csv"} --arch' in out
    verdict = err.splitlines()[-1]
    assert re.match(r'VERDICT: (WIN|LEVEL|LOSS) \| score=0\.\d+', verdict)
    assert str(here/'arch' if 'LOSS' in verdict else tmp_path/'lm') in out.split('--arch')[-1]
    assert run(*args, '--label-col', 'no', '--output', tmp_path/'x')!=0 and not (tmp_path/'x').exists()

def test_adapt_says_what_stage_2_of_an_encoder_is_for(here, capsys, tmp_path, monkeypatch):
    arch = shutil.copytree(here/'arch', tmp_path/'encoder') # as sentence-transformers writes one
    config = json.loads((arch/'config.json').read_text()) | dict(architectures=['BertModel'])
    (arch/'config.json').write_text(json.dumps(config))
    kinds = dict(enumerate([('','Transformer'), ('1_Pooling','Pooling')]))
    (arch/'modules.json').write_text(json.dumps([dict(idx=i, name=str(i), path=p, type=f'sentence_transformers.models.{k}') for i,(p,k) in kinds.items()]))
    (arch/'1_Pooling').mkdir()
    (arch/'1_Pooling'/'config.json').write_text(json.dumps(dict(word_embedding_dimension=config['hidden_size'], pooling_mode_mean_tokens=True)))
    monkeypatch.setattr('fastformers.commands.train._better', lambda rows, arch, score, path: (Verdict(reason='not asked'), path))
    args = 'adapt', here/'folder', '--arch', arch, '--labelled', here/'reviews.csv', '--epochs', '1'
    for kappa,best in ((.9, tmp_path/'a'), (.2, arch)):
        monkeypatch.setattr('fastformers.learner.spread.near_kappa', lambda *_: kappa)
        assert run(*args, '--output', tmp_path/('a' if kappa>.6 else 'b'))==0
        out = capsys.readouterr().out
        assert f'a kappa of {kappa:.2f}' in out and f'--arch {best} ' in out.split('Next:')[-1], out
        assert ('stays frozen (`--epochs 0`)' in out)==(kappa<=.6)
    assert read_stage(tmp_path/'a')['recipe']['objective']=='word_similarity' and (tmp_path/'a'/'modules.json').is_file()

def test_classify_ends_with_tables_and_the_next_command(here, capsys):
    assert run('classify', here/'folder', '--arch', here/'arch', '--output', here/'from folder', '--test', here/'reviews.csv', *quick)==0
    out = capsys.readouterr().out
    assert 'on 60 test rows)' in out.split('held-out rows)')[1] and out.count('macro avg')==1
    assert all(o in out for o in ('test accuracy','precision','macro avg', f"predict '{here/'from folder'}'")), out

def results(capsys, *args):
    "Run a command with --json: its object, and the last line of standard error"
    assert run(*args, '--json')==0
    out,err = capsys.readouterr()
    return json.loads(out), err.splitlines()[-1]

def test_results_are_one_object_and_the_verdict_is_the_last_line(here, tmp_path, capsys):
    got,last = results(capsys, 'classify', here/'reviews.csv', '--arch', here/'arch', '--output', tmp_path/'c', *quick)
    assert last=='VERDICT: NONE | 15 held-out rows are too few, expected 20 or more'
    assert got['verdict']['word']=='NONE' and got['verdict']['rival'] and got['stage']['plan']['epochs'] and got['classes'][0]['label']=='negative'
    assert got['output']==str(tmp_path/'c') and any('steps are few' in o for o in got['warnings'])
    intents(200)[['text','label']].to_csv(tmp_path/'intents.csv', index=False)
    got,last = results(capsys, 'compare', tmp_path/'intents.csv', '--output', tmp_path/'b', '--entries', 'largest class,TF-IDF', '--seeds', '1,2')
    v = got['verdict']
    assert (got['winner'],v['rival'],v['word'])==('TF-IDF','largest class','WIN') and v['low']>0
    assert last=='VERDICT: WIN | score={score:.3f} | baseline={baseline:.3f} | delta={delta:+.3f}'.format(**v)
    got,last = results(capsys, 'adapt', here/'folder', '--arch', here/'arch', '--output', tmp_path/'lm', '--seq-len', 32, *quick)
    assert last.startswith('VERDICT: NONE | a language model has no labels') and got['stage']['metrics']['perplexity']
    assert results(capsys, 'predict', here/'classifier', 'A text.')[0]['answers'][0]['label'] in {*tiny_df().label}
    assert results(capsys, 'check', here/'classifier', here/'reviews.csv', '--rows', 5)[0]['checks']

def test_what_is_wrong_with_a_file_or_a_classifier_is_listed(here, tmp_path, capsys):
    df = intents(200)[['text','label']].reset_index(drop=True).assign(half=lambda d: d.index%2)
    wrong = [5,50,100]
    df.loc[wrong,'label'] = [next(o for o in df.label.unique() if o!=v) for v in df.label[wrong]]
    df.to_csv(tmp_path/'rows.csv', index=False)
    found = results(capsys, 'label-issues', tmp_path/'rows.csv', '--out', tmp_path/'found.csv')[0]['label_issues']
    assert {*wrong}<={o['row'] for o in found} and [*pd.read_csv(tmp_path/'found.csv').row]==[o['row'] for o in found]
    assert run('label-issues', tmp_path/'rows.csv', '--rows', 3)==0 and f'{len(found)} of 200 labels are doubted' in capsys.readouterr().out
    rows = tiny_df().assign(half=lambda d: d.index%2)
    rows.to_csv(tmp_path/'reviews.csv', index=False)
    found = results(capsys, 'slices', here/'classifier', tmp_path/'reviews.csv', '--by', 'half', '--out', tmp_path/'slices.tsv')[0]
    assert {'half = 0','half = 1'}<={o['slice'] for o in found['slices']} and any('too good' in o for o in found['warnings'])
    assert len(pd.read_csv(tmp_path/'slices.tsv', sep='\t'))==len(found['slices'])
    for args,says in ((('slices', here/'classifier', tmp_path/'reviews.csv'), 'p is corrected for the number of slices'), (('explain', here/'classifier', 'Cold soup'), 'weight: the fall of the log-odds of the label without the word')):
        assert run(*args)==0 and says in capsys.readouterr().out
    for args in (('label-issues', tmp_path/'no.csv'), ('label-issues', tmp_path/'rows.csv', '--label-col', 'no'), ('slices', here/'classifier', tmp_path/'rows.csv', '--by', 'no')):
        assert run(*args)==2, args

def test_the_next_command_reads_a_file_as_this_one_did(here, tmp_path, capsys):
    df = tiny_df().rename(columns={'text':'t e','label':'l'})
    df.loc[3,'t e'] = ''
    df.assign(l=df.l.sample(frac=1, random_state=0).values).to_csv(tmp_path/'a b.csv', sep=';', encoding='utf-16', index=False)
    read = '--text-col', 't e', '--label-col', 'l', '--drop-blank', '--sep', ';', '--encoding', 'utf-16'
    assert run('classify', tmp_path/'a b.csv', *read, '--arch', here/'arch', '--output', tmp_path/'c', *quick)==0
    said = re.search('may be wrong: fastformers (.*)', capsys.readouterr().out)[1]
    assert shlex.split(said)==['label-issues', str(tmp_path/'a b.csv'), *read]
    assert run(*shlex.split(said), '--arch', here/'arch')==0

def test_long_texts_are_shown_in_part(here, tmp_path, capsys):
    text = ' '.join(map(str, range(2000)))
    (tmp_path/'long.txt').write_text('\n'.join(f'{text} {o} Sofie did not like it.' for o in ('good','bad')))
    tiny_df().drop(columns='is_valid').to_csv(tmp_path/'r.csv', index=False)
    assert run('classify', tmp_path/'r.csv', '--arch', here/'arch', '--output', tmp_path/'c', '--valid-pct', .4, '--epochs', 0)==0
    capsys.readouterr()
    for name in ('check','drift'):
        assert run(name, tmp_path/'c', tmp_path/'long.txt')==0
        assert max(map(len, capsys.readouterr().out.splitlines()))<300, name
    assert answer._part('a'*300+' new '+'b'*300, 301, 6)=='…aa new…' and answer._part('a\n b')=='a b'

def test_classify_leaves_a_page(here):
    page = (here/'classifier/report.html').read_text('utf-8')
    for o in ('<p>Accuracy 0.', 'no verdict: 15 held-out rows', 'TF-IDF', 'macro avg', 'Up to twenty', 'steps are few', f"fastformers classify {here/'reviews.csv'} --arch"): assert o in page, o

@pytest.mark.parametrize('kind', ['spans','numbers','several','tags'])
def test_classify_ends_with_page_and_verdict_for_each_task(here, tmp_path, capsys, kind):
    df = tiny_df()
    tables = dict(spans=(tiny_spans(), ('--text-col','question,context','--label-col','answer_text,answer_start')), numbers=(df.assign(label=df.text.map(len)*1.5), ()),
                  several=(df.assign(label=df.label.map(lambda o: [o, o[:3]])), ()), tags=(tiny_tags(), ()))
    rows,flags = tables[kind]
    rows.to_json(tmp_path/'rows.jsonl', orient='records', lines=True)
    got,last = results(capsys, 'classify', tmp_path/'rows.jsonl', *flags, '--arch', here/'arch', '--output', tmp_path/'c', *quick)
    page = (tmp_path/'c/report.html').read_text('utf-8')
    assert last.startswith('VERDICT: ') and got['stage']['metrics'] and 'Make it again' in page and '--force' in page
    if kind=='numbers': assert 'the largest first' in page and '>label</td>' not in page

def test_a_verdict_needs_no_reader_of_standard_output(here, tmp_path, capsys, monkeypatch):
    def gone(*args, file=None, **kwargs):
        if file is None: raise BrokenPipeError
        said.append(str(args[0]))
    said = []
    monkeypatch.setattr(cli, 'print', gone, raising=False)
    with pytest.raises(BrokenPipeError): cli._conclude(SimpleNamespace(json=True, command=run, warnings=[]), Verdict(reason='why'))
    assert said==['VERDICT: NONE | why']

def test_names_alone_have_a_verdict_on_test_rows(here, tmp_path, capsys):
    names = '--labels',','.join(tiny_df().label.unique()),'--arch',here/'arch'
    assert results(capsys, 'classify', *names, '--output', tmp_path/'a')[1]=='VERDICT: NONE | no labelled row; add --test FILE'
    got,last = results(capsys, 'classify', *names, '--output', tmp_path/'b', '--test', here/'reviews.csv', '--unlabelled', here/'reviews.csv')
    assert got['verdict']['rival']=='largest class' and got['verdict']['rows']==60 and last.startswith('VERDICT: ')

def test_labelling_ends_with_the_verdict_of_its_last_training(here, tmp_path, capsys, monkeypatch):
    page = pytest.importorskip('fastformers.label.page')
    said = 'VERDICT: LEVEL | score=0.500 | baseline=0.500 | delta=+0.000'
    write_text(tmp_path/'texts.txt', 'One text.\nAnother text.')
    label = 'label', tmp_path/'texts.txt', '--labels', 'a,b', '--arch', here/'arch', '--output', tmp_path/'l.csv', '--port', 0
    def closed(session, sock): # its thread has loaded and learnt
        if session._thread: session._thread.join()
        sock.close()
    monkeypatch.setattr(page, 'serve', closed)
    assert run(*label)==0 and capsys.readouterr().err.splitlines()[-1]=='VERDICT: NONE | no classifier was trained'
    monkeypatch.setattr(page, 'serve', lambda session, sock: (closed(session, sock), vars(session).update(training=type('Done', (), dict(stage=said, verdict='a table')))))
    assert run(*label)==0 and capsys.readouterr().err.splitlines()[-1]==said

def test_the_script_with_its_dependencies_trains_and_predicts(here, root, tmp_path, capsys):
    source = (root/'examples/csv_to_labels.py').read_text('utf-8')
    header = re.search(r'^# /// script\n(.*?)^# ///$', source, re.M|re.S)[1]
    assert tomllib.loads(re.sub('^# ?', '', header, flags=re.M))['dependencies']==['fastformers[minilm]'] and len(source.splitlines())<40
    runpy.run_path(root/'examples/csv_to_labels.py')['main'](here/'reviews.csv', here/'reviews.csv', tmp_path/'out.csv', str(here/'arch'))
    assert 'VERDICT: ' in capsys.readouterr().out and pd.read_csv(tmp_path/'out.csv').predicted_label.notna().all()

def test_the_page_for_agents_has_commands_that_are_understood(capsys):
    assert run('skill')==0
    text = capsys.readouterr().out
    commands = [o for o in re.findall('`(fastformers [^`]*)`|^(fastformers .*?) [>|]', text, re.M) for o in o if o and '[' not in o and 'COMMAND' not in o]
    assert len(commands)>10 and len(text.splitlines())<=120
    assert yaml.safe_load(text.split('---')[1]).keys()=={'name','description'}
    for o in commands: assert callable(cli.parse_args(shlex.split(o)[1:]).command)

@pytest.mark.parametrize('labels,kind', [('short,good','multi'), ('label','single')])
def test_pairs_and_several_labels_are_named_with_commas(here, tmp_path, labels, kind):
    assert run('classify', here/'wide.csv', '--text-col', 'a, b', '--label-col', labels, '--arch', here/'arch', '--output', tmp_path/'c', *quick)==0
    p = from_hf(tmp_path/'c', device='cpu')
    assert p.task.name==kind and p.pairs
    assert run('predict', tmp_path/'c', '--csv', here/'wide.csv', '--text-col', 'a,b', '--out', tmp_path/'out.csv')==0
    got = pd.read_csv(tmp_path/'out.csv', keep_default_na=False)
    assert len(got)==60 and list(got)[-2:]==['predicted_label','predicted_score']           # there is a column label already

@pytest.mark.skipif("tags" not in tasks, reason="not there yet")
def test_a_tagger_from_a_conll_file(here, tmp_path, capsys):
    assert run('classify', here/'words.conll', '--task', 'tags', '--arch', here/'arch', '--output', tmp_path/'t', *quick)==0
    assert run('predict', tmp_path/'t', 'Anna Berg lives in Oslo .')==0
    assert run('explain', tmp_path/'t', 'Anna Berg lives in Oslo .', '--word', 'Oslo')==0 and 'Oslo: ' in capsys.readouterr().out

def test_classify_trains_on_unlabelled_texts_too(here, tmp_path, caplog):
    caplog.set_level('INFO', 'fastformers')
    (tmp_path/'more.txt').write_text('A new text.\nAnother one.\n')
    def classify(more): return run('classify', here/'reviews.csv', '--unlabelled', more, '--arch', here/'arch', '--output', tmp_path/'c', *quick)
    assert classify(here/'folder')==2 # the labelled texts themselves
    assert classify(tmp_path/'more.txt')==0
    assert 'near texts have' in caplog.text and from_hf(tmp_path/'c')(['a text'])[0]['label']

def test_texts_with_labels_of_near_texts_leave_no_checkpoints(here, tmp_path, monkeypatch):
    from fastai.learner import Learner
    monkeypatch.setattr(Learner, 'spread_labels', lambda self, texts, scores=None: ['positive']*len(texts))
    write_text(tmp_path/'more.txt', 'An unread text.\nAnother one.\nA third.')
    command = 'classify', here/'reviews.csv', '--unlabelled', tmp_path/'more.txt', '--arch', here/'arch', '--output', tmp_path/'c', *quick
    assert run(*command)==0 and {o.name for o in tmp_path.iterdir()}=={'c','more.txt'}
    assert run(*command, '--force')==0

def test_flags_are_settings_of_the_stage(here, tmp_path):
    assert run('classify', here/'reviews.csv', '--arch', here/'arch', '--output', tmp_path/'c', '--hidden-states=-2,-1', '--adapters', 'bitfit', *quick)==0
    recipe = read_stage(tmp_path/'c')['recipe']
    assert list(recipe['hidden_states'])==[-2,-1] and recipe['adapters']=='bitfit'

def test_settings_come_from_a_recipe_and_flags_change_them(here, tmp_path, capsys):
    (tmp_path/'general.ini').write_text('[general]\nsize = 3\nwidth = 64\ninner = 96\nvocab_sz = 600\nseq_len = 32')
    (tmp_path/'lm.ini').write_text('[lm]\nepochs = 2')
    assert run('pretrain', here/'folder', '--recipe', tmp_path/'general.ini', '--output', tmp_path/'g', '--size', 1, *quick)==0
    cfg = load_config(tmp_path/'g')
    assert (cfg.num_hidden_layers,cfg.hidden_size,cfg.intermediate_size)==(1,64,96)
    assert run('pretrain', here/'folder', '--recipe', tmp_path/'lm.ini', '--output', tmp_path/'h')==2
    assert 'no section [general]' in capsys.readouterr().err

def test_run_leaves_a_report_and_the_recipe(here, tmp_path, capsys):
    ini = f"[run]\noutput = {tmp_path/'run'}\ncompare =\n[data]\nsource = {here/'reviews.csv'}\n[model]\narch = {here/'arch'}\n[lm]\nbs = 8\nseq_len = 32\n[classifier]\nepochs = 1\nbs = 8\n"
    write_text(tmp_path/'mine.ini', ini)
    assert run('run', tmp_path/'mine.ini', '--seeds', '1,2')==0
    assert 'report.md' in capsys.readouterr().out and (tmp_path/'run/report.md').exists()
    assert 'seeds = 1, 2' in (tmp_path/'run/settings.ini').read_text()
    assert run('run', tmp_path/'run/settings.ini')==2 and '--force' in capsys.readouterr().err

def test_a_run_with_a_finished_stage_is_not_begun_anew_without_a_word(here, tmp_path, capsys):
    "Stopped before the first checkpoint of the second stage"
    write_text(tmp_path/'run/run.json', '{}'); write_text(tmp_path/'run/target_lm/record.json', '{}')
    write_text(tmp_path/'mine.ini', f"[run]\noutput = {tmp_path/'run'}\n[data]\nsource = {here/'reviews.csv'}\n")
    assert run('run', tmp_path/'mine.ini')==2 and '--resume' in capsys.readouterr().err

def test_columns_may_have_the_names_of_ours(here, tmp_path):
    "A column `text` beside the one that is read, `is_valid` beside another flag, tabs by `--sep`, numbers as second texts"
    rows = tiny_df().assign(clean=tiny_df().text, fold=tiny_df().is_valid, is_valid='x', year=1999)
    rows.to_csv(tmp_path/'rows.csv', index=False, sep='\t')
    flags = '--sep','\t','--valid-col','fold'
    assert run('adapt', tmp_path/'rows.csv', '--arch', here/'arch', '--output', tmp_path/'lm', '--text-col', 'clean', '--epochs', '.1', '--seq-len', '32', *flags)==0
    assert run('compare', tmp_path/'rows.csv', '--output', tmp_path/'board', '--entries', 'TF-IDF', '--seeds', '1,2', *flags)==0
    assert run('classify', tmp_path/'rows.csv', '--arch', here/'arch', '--output', tmp_path/'pair', '--text-col', 'text,year', *flags, *quick)==0

def test_lines_without_a_key_keep_their_columns(here, tmp_path, monkeypatch):
    monkeypatch.setattr(answer, 'chunksize', 2)
    lines = ['{"id": 1, "text": "a film"}', '{"id": 2, "text": "a cup"}', '{"id": 3, "lang": "fr", "text": "un film"}']
    (tmp_path/'a.jsonl').write_text('\n'.join(lines))
    assert run('predict', here/'classifier', '--csv', tmp_path/'a.jsonl', '--out', tmp_path/'o.csv')==0
    table = pd.read_csv(tmp_path/'o.csv')
    assert table.lang.tolist()[2]=='fr' and table.text.tolist()==['a film','a cup','un film'] and table.label.notna().all()

def test_resume_is_stronger_than_force(here, tmp_path, caplog):
    command = 'compare', here/'reviews.csv', '--output', tmp_path/'c', '--entries', 'TF-IDF', '--seeds', '1,2'
    assert run(*command, '--resume')==0 and f"--resume: no checkpoint in {tmp_path/'c'}; it begins anew" in caplog.text
    assert re.search(r'TF-IDF: accuracy 0\.\d+, under 1 s a training\. Next: the best, on all rows\. Left: ', caplog.text) and '95 % interval' not in caplog.text.partition('Next:')[0]
    caplog.clear()
    fits = {o:o.stat().st_mtime_ns for o in (tmp_path/'c/fits').iterdir()}
    assert run(*command, '--force', '--resume')==0 and fits=={o:o.stat().st_mtime_ns for o in (tmp_path/'c/fits').iterdir()}
    assert 'begins anew' not in caplog.text

def test_an_interrupted_command_continues(here, tmp_path, capsys, caplog, monkeypatch):
    from fastformers.ulmfit import stage
    command = 'classify', here/'reviews.csv', '--arch', here/'arch', '--output', tmp_path/'c', *quick
    def stop(*args, resume, **kwargs): mark_checkpoints(resume); write_text(resume/'fit000-1/state.json', ''); raise KeyboardInterrupt
    with monkeypatch.context() as m:
        m.setattr(stage, 'fine_tune_classifier', stop)
        assert run(*command)==130
    err = capsys.readouterr().err
    assert err.splitlines()[-1]=='fastformers: interrupted; continue with the same command and --resume'
    assert run(*command)==2 and '--resume' in capsys.readouterr().err
    (tmp_path/'c.checkpoints/fit000-1/state.json').unlink()
    assert run(*command, '--resume')==0 and [o.name for o in tmp_path.iterdir()]==['c']
    assert caplog.text.count(f"no checkpoint in {tmp_path/'c.checkpoints'}")==1

def test_files_of_others_stay(here, tmp_path, capsys):
    "Neither a command that is refused nor one that succeeds deletes what is not its own"
    ini = f"[run]\noutput = out\ncompare =\n[data]\nsource = {here/'reviews.csv'}\n[model]\narch = {here/'arch'}\n[lm]\nobjective = none\n[classifier]\nepochs = .2\nbs = 8\n"
    for o,text in (('s.ini',ini), ('out/checkpoints/e1.pt','mine'), ('c.checkpoints/e1.pt','mine')): write_text(tmp_path/o, text)
    begun = 'classify', here/'reviews.csv', '--arch', here/'arch', '--output', tmp_path/'c', *quick
    for args in (begun, (*begun,'--force'), ('run',tmp_path/'s.ini'), ('run',tmp_path/'s.ini','--force')):
        assert run(*args)==2 and 'is not empty and holds no' in capsys.readouterr().err
        assert (tmp_path/'out/checkpoints/e1.pt').read_text()==(tmp_path/'c.checkpoints/e1.pt').read_text()=='mine'
    assert run('run', tmp_path/'s.ini', '--output', tmp_path/'b')==0
    for o in ('checkpoints/e1.pt','notes/record.json','classifier.old/record.json'): write_text(tmp_path/'b'/o, 'mine')
    assert run('run', tmp_path/'s.ini', '--output', tmp_path/'b', '--force')==0
    assert [o.read_text() for o in sorted(tmp_path.glob('b/*/*')) if o.parent.name!='classifier']==['mine']*3

# Prediction

def test_predict_says_what_the_learner_would(here, tmp_path, capsys):
    texts = tiny_df().text.tolist()
    want = from_hf(here/'classifier', device='cpu')(texts)
    tiny_df()[['text']].to_csv(tmp_path/'in.csv', index=False)
    assert run('predict', here/'classifier', '--csv', tmp_path/'in.csv', '--out', tmp_path/'out.csv')==0
    got = pd.read_csv(tmp_path/'out.csv', keep_default_na=False)
    assert got.text.tolist()==texts and got.label.tolist()==[o['label'] for o in want]
    assert got.score.tolist()==pytest.approx([o['score'] for o in want], abs=1e-5)
    assert run('predict', here/'classifier', '--top-k', 2, texts[0])==0
    assert 'label_2' in (out := capsys.readouterr().out) and texts[0] in out

def test_a_classifier_knows_the_columns_it_was_trained_on(here, tmp_path, capsys, caplog):
    df = tiny_df().rename(columns=dict(text='headline', label='topic')).assign(text='Two weeks and no sign of it.', label='x')
    df.to_csv(tmp_path/'both.csv', index=False)
    assert run('classify', tmp_path/'both.csv', '--text-col', 'headline', '--label-col', 'topic', '--arch', here/'arch', '--output', tmp_path/'c', *quick)==0
    assert "predict" in (says := capsys.readouterr().out.splitlines())[-2] and says[-1].endswith('--csv FILE --text-col headline')
    clf = from_hf(tmp_path/'c', device='cpu')
    want = [o['label'] for o in clf(df.headline.tolist())]
    def labels(file, *flags):
        assert run('predict', tmp_path/'c', '--csv', file, '--out', tmp_path/'out.csv', *flags)==0
        return pd.read_csv(tmp_path/'out.csv').predicted_label.tolist()
    assert labels(tmp_path/'both.csv')==want==clf.predict_frame(df).predicted_label.tolist()
    assert labels(tmp_path/'both.csv', '--text-col', 'text')==[o['label'] for o in clf(df.text.tolist())] and 'is read' not in caplog.text
    assert labels(here/'reviews.csv')==want and "column 'text' is read: there is no column 'headline'" in caplog.text
    assert run('slices', tmp_path/'c', tmp_path/'both.csv')==0
    clf.save(tmp_path/'again')
    assert read_stage(tmp_path/'again')['columns']==dict(text_col='headline', label_col='topic')
    (stage := json.loads((tmp_path/'c/stage.json').read_text())).pop('columns') # of an older version
    (tmp_path/'c/stage.json').write_text(json.dumps(stage))
    assert labels(tmp_path/'both.csv')==[o['label'] for o in clf(df.text.tolist())]

def test_a_predicted_csv_is_the_same_table_in_all_else(here, tmp_path):
    texts = ['Cold soup', 'Two\nlines', 'a "word", quoted', '', 'Café 😡']
    pd.DataFrame({'id':['001','002','003','004','1.50'], 'text':texts, 'note':['NA','null','','x','1e3']}).to_csv(tmp_path/'in.csv', index=False)
    assert run('predict', here/'classifier', '--csv', tmp_path/'in.csv', '--out', tmp_path/'out.tsv')==0
    got = pd.read_csv(tmp_path/'out.tsv', sep='\t', keep_default_na=False, dtype=str)
    assert got.text.tolist()==texts and got.id.tolist()==['001','002','003','004','1.50'] and got.note.tolist()==['NA','null','','x','1e3']
    assert [not o for o in got.label]==[not o for o in got.score]==[False,False,False,True,False], 'blank texts have no answer'

def test_a_folder_is_labelled_with_the_names_of_its_files(here, tmp_path):
    for name,text in zip(('b.txt','sub/a.txt'), tiny_df().text): write_text(tmp_path/'in'/name, text)
    assert run('predict', here/'classifier', '--csv', tmp_path/'in', '--out', tmp_path/'out.csv')==0
    got = pd.read_csv(tmp_path/'out.csv')
    assert [*got]==['text','file','label','score'] and got.file.tolist()==['b.txt','sub/a.txt'] and got.text.tolist()==tiny_df().text.tolist()[:2]
    write_text(tmp_path/'flat'/'a.txt', 'Cold soup')
    with pytest.raises(ValueError, match='`labels=False` reads one without labels'): read_texts(tmp_path/'flat')

def test_a_large_csv_is_read_in_chunks(here, tmp_path, monkeypatch):
    "Every row is answered once and in order, over the border of chunks"
    monkeypatch.setattr(answer, 'chunksize', 16)
    assert run('predict', here/'classifier', '--csv', here/'reviews.csv', '--out', tmp_path/'out.csv')==0
    got = pd.read_csv(tmp_path/'out.csv', keep_default_na=False)
    assert got.text.tolist()==tiny_df().text.tolist()
    assert got.predicted_label.tolist()==[o['label'] for o in from_hf(here/'classifier', device='cpu')(tiny_df().text.tolist())]

def test_a_file_is_written_whole_or_not_at_all(here, tmp_path, monkeypatch):
    monkeypatch.setattr(answer, 'chunksize', 16)
    seen = []
    def breaks(self, df, *args, **kwargs):
        seen.append(len(df))
        if len(seen)==3: raise OSError('the disk is full')
        return df.assign(label='a')
    monkeypatch.setattr('fastformers.inference.answers.BasePredictor.predict_frame', breaks)
    (tmp_path/'out.csv').write_text('old')
    assert run('predict', here/'classifier', '--csv', here/'reviews.csv', '--out', tmp_path/'out.csv')==2
    assert [o.name for o in tmp_path.iterdir()]==['out.csv'] and (tmp_path/'out.csv').read_text()=='old' and len(seen)==3

@pytest.mark.slow
@pytest.mark.skipif(sys.platform!='linux', reason='counts kilobytes as Linux does')
def test_memory_does_not_grow_with_the_file(here, tmp_path, without_fastai):
    peaks = []
    for n in (10_000, 100_000):
        with open(tmp_path/'in.csv', 'w') as f: print('text', *(f'This film number {i} is fine' for i in range(n)), sep='\n', file=f)
        code = f"""import resource, sys
from fastformers.cli import main
assert main(['predict', {str(here/'classifier')!r}, '--csv', {str(tmp_path/'in.csv')!r}, '--out', {str(tmp_path/'out.csv')!r}])==0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"""
        peaks.append(int(without_fastai(code)))
        assert sum(1 for _ in open(tmp_path/'out.csv'))==n+1
    assert peaks[1]-peaks[0]<30_000, peaks

def test_lines_of_a_text_file_are_labelled_without_fastai(here, tmp_path, without_fastai):
    write_text(tmp_path/'lines.txt', 'Great sound.\nCafé, naïve 😡\n')
    code = f"import sys\nfrom fastformers.cli import main\nr = main(['predict', {str(here/'classifier')!r}, '--csv', {str(tmp_path/'lines.txt')!r}])\nassert 'fastai' not in sys.modules\nsys.exit(r)"
    assert list(pd.read_csv(io.StringIO(without_fastai(code))).text)==['Great sound.','Café, naïve 😡']

def test_a_classifier_for_everybody(here, tmp_path):
    "With Hugging Face's own head, transformers opens what the command wrote"
    from transformers import pipeline
    assert run('classify', here/'reviews.csv', '--arch', here/'arch', '--head', 'hf', '--output', tmp_path/'c', *quick)==0
    a,b = pipeline('text-classification', str(tmp_path/'c'), device='cpu')('Great sound.')[0],from_hf(tmp_path/'c', device='cpu')('Great sound.')[0]
    assert a['label']==b['label'] and a['score']==pytest.approx(b['score'], abs=1e-4)

# Errors

@pytest.mark.parametrize('args,words', [
    ('clasify', 'invalid choice'),
    ('classify reviews.csv --output x --epcohs 3', 'did you mean --epochs?'),
    ('classify reviews.csv --output x --lr fast', 'expected a number'),
    ('classify reviews.csv --output x --objective mlm', '--objective'),
    ('classify reviews.csv --output x --label-col lable', 'did you mean label?'),
    ('classify reveiws.csv --output x', 'reviews.csv'),
    ('classify reviews.csv --output classifier', '--force'),
    ('classify reviews.csv --output folder --force', 'is not empty and holds no stage.json'),
    ('classify reviews.csv --output x --arch nowhere/at-all', 'nowhere/at-all'),
    ('classify reviews.csv --output x --arch arch --schedule slow', 'gradual_unfreeze'),
    ('classify reviews.csv --output x --arch arch --adapters tiny', 'bottleneck'),
    ('classify reviews.csv --output x --arch arch --task parse', 'regression'),
    ('adapt reviews.csv --output x --arch arch --objective mml', 'mlm'),
    ('pretrain reviews.csv --output x --text-col review', 'columns are text'),
    ('run empty.ini', 'no section'),
    ('run nowhere.ini', 'does not exist'),
    ('predict classifier', 'expected either texts'),
    ('predict classifier reviews.csv', 'expected a text, got the name of a file, reviews.csv; pass it as --csv'),
    ('predict classifier folder', 'expected a text, got the name of a folder, folder; pass it as --csv'),
    ('predict classifier nowhere.csv --out o.csv', 'got the name of a file, nowhere.csv; pass it as --csv'),
    ('predict classifier text --out o.csv', '--out is written with --csv FILE'),
    ('explain classifier reviews.csv', 'pass one of its texts'),
    ('predict classifier --csv reviews.csv --text-col txt', "--text-col 'txt' is not a column; columns are text, label, is_valid; did you mean text?"),
    ('predict classifier --csv reviews.csv --out labelled.xlsx', '--out is a csv or tsv file, got .xlsx'),
    ('check classifier reviews.csv --text-col txt', 'did you mean text?'),
    ('check classifier reviews.csv --negated good', "'good' is no label; expected one of negative, neutral, positive"),
    ('check classifier nowhere.csv', 'does not exist'),
    ('check nowhere reviews.csv', 'nowhere'),
    ('predict arch text', 'classifier'),
    ('predict nowhere text', 'nowhere'),
    ('classify reviews.csv --output x --arch arch --bs 0', '--bs 0 is out of range; expected 1 or more'),
    ('adapt reviews.csv --output x --arch arch --lr 1e3', 'expected 1e-10 to 1'),
    ('adapt reviews.csv --output x --arch mini-lm', 'did you mean minilm?'),
    ('classify reviews.csv --output x --arch ./ach', 'did you mean arch?'),
    ('classify reviews.csv --output x --gpu', 'a GPU if there is one'),
    ('classify reviews.csv --output x --device cpu', 'a GPU if there is one')])
def test_an_error_is_one_line(here, capsys, monkeypatch, args, words):
    monkeypatch.chdir(here)
    before = sorted(here.iterdir())
    try: code = run(*args.split())
    except SystemExit as e: code = e.code
    err = [o for o in capsys.readouterr().err.splitlines() if 'fastformers: ' in o]
    assert code==2 and len(err)==1 and err[0].startswith('fastformers: error: ') and words in err[0], err
    assert sorted(here.iterdir())==before, 'an error left something behind'

@pytest.mark.parametrize('command', ['predict','explain'])
def test_a_blank_text_is_no_folder(here, capsys, command):
    for o in ('', ' '): assert run(command, here/'classifier', o)==2 and 'expected a text, got a blank one' in capsys.readouterr().err

def test_debug_shows_where(here):
    with pytest.raises(FileNotFoundError): run('classify', here/'nowhere.csv', '--output', here/'x', '--debug')

@pytest.mark.parametrize('args', ['--help', 'run --help', 'classify --help', 'predict --help', 'check --help', 'classify nowhere.csv --output x', 'classify reviews.csv --output x --label-col lable',
    'classify reviews.csv --output x --bs 0', 'adapt reviews.csv --output x --arch ./ach', 'run column.ini', 'run test.ini', 'run arch.ini', 'predict clasifier text', 'predict', 'check classifier reviews.csv --text-col txt'])
def test_help_and_mistakes_load_neither_torch_nor_fastai(here, args):
    for o,text in (('column','text_col = txt'), ('test','test = nowhere.csv'), ('arch','[model]\narch = ./ach')): write_text(here/f'{o}.ini', f'[run]\noutput = new\n[data]\nsource = reviews.csv\n{text}')
    code = "import sys\nfrom fastformers.cli import main\ntry: main(sys.argv[1:])\nfinally: assert not {'torch','fastai','transformers'} & {*sys.modules}"
    r = subprocess.run([sys.executable, '-c', code, *args.split()], capture_output=True, text=True, cwd=here, env={**os.environ, 'PYTHONPATH':str(repo)})
    assert 'Assertion' not in r.stderr, r.stderr
    assert ('error' in r.stderr and 'Next' not in r.stdout) or '--help' in args, r

def test_a_column_of_others_is_not_guessed(here, capsys):
    assert run('classify', here/'reviews.csv', '--output', here/'x', '--label-col', 'intent')==2
    assert 'columns are text, label' in (err := capsys.readouterr().err) and 'did you mean' not in err

def test_check_prints_a_table_and_examples(here, tmp_path, capsys):
    assert run('check', here/'classifier', here/'reviews.csv', '--rows', 30, '--negated', 'positive,negative')==0
    out = capsys.readouterr().out
    for o in ('failures','typo','negation','other first name','religion'): assert o in out
    assert ' 30 ' in next(o for o in out.splitlines() if o.strip().startswith('typo '))
    write_text(tmp_path/'lines.txt', 'It is good.\n\nNo.\n')
    assert run('check', here/'classifier', tmp_path/'lines.txt')==0 and 'negation' not in capsys.readouterr().out

def test_pairs_are_asked_for_in_twos(here, tmp_path, capsys):
    assert run('classify', here/'wide.csv', '--text-col', 'a,b', '--arch', here/'arch', '--output', tmp_path/'c', *quick)==0
    for texts in (['one'], ['one','other','third']):
        capsys.readouterr()
        assert run('predict', tmp_path/'c', *texts)==2
        said = capsys.readouterr()
        assert 'reads pairs' in said.err and not said.out
    assert run('predict', tmp_path/'c', 'one', 'other', 'first', 'second')==0 and len(capsys.readouterr().out.splitlines())==3
    assert run('check', tmp_path/'c', here/'wide.csv', '--text-col', 'a,b', '--rows', 5)==0 and 'religion' not in capsys.readouterr().out

def test_a_flag_has_one_default(capsys):
    for o in ('classify','adapt','pretrain','compare','label','predict','shares'):
        with pytest.raises(SystemExit): run(o, '--help')
        for flag in re.split(r'\n  --', capsys.readouterr().out): assert ' '.join(flag.split('\n\n')[0].split()).count('default:')<2, flag

def test_a_flag_is_a_setting_with_its_comment(capsys):
    from fastformers.ulmfit.recipe import TaskConfig, settings
    with pytest.raises(SystemExit): run('classify', '--help')
    out = ' '.join(capsys.readouterr().out.split())
    for o in settings(TaskConfig).values(): assert '--'+o.name.replace('_','-') in out and ' '.join(o.help.replace('`','').split()[:3]) in out
