"""The cases of make_vectors.py: small templates, each for a few features of the language, and conversations."""

# Templates are shown these besides messages, tools and add_generation_prompt.
VARIABLES = {
    "s": "Hello, World",
    "u": "Grüße, Ελλάς ΣΑΣ ß ﬁ ǆ 日本語 👍🏽",
    "w": "  \t padded\u00a0text \n",
    "lines": "one\n two\n\nthree\r\nfour",
    "empty": "",
    "i": 7,
    "neg": -3,
    "f": 2.5,
    "yes": True,
    "no": False,
    "nothing": None,
    "l": [3, 1, 2],
    "names": ["beta", "Alpha", "gamma", "alpha"],
    "d": {"b": 1, "a": [1, 2.0, None, True, "x\"y'z"], "items": "shadowed", "k": {"n": "deep"}},
    "people": [
        {"name": "Ann", "age": 31, "tags": ["x", "y"], "role": "user"},
        {"name": "bob", "age": 25, "tags": [], "role": "system"},
        {"name": "Cy", "age": 31, "role": "user", "extra": {"z": 1}},
    ],
    "schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "A <city> & \"more\" é 日"}, "n": {"type": ["integer", "null"], "enum": [1, 2]}},
        "required": ["city"],
    },
    "numbers": [0, 1, -1, 10, 123456789012, 0.1, 1e16, 1e-5, 123456.789, 1e22, 5e-324, -0.0, 1.0, 100.0, 1234567890123456.0],
}

EXPRESSIONS = """
s | s|length | s|upper | s|lower | s|title | s|capitalize | s|trim | s|replace('l','L') | s|replace('l','L',1)
u|upper | u|lower | u|title | u|capitalize | u.title() | u|length | u[7] | u[-1] | u[::-1] | u[2:9:3] | u|list | u|reverse
w|trim | w.strip() | w.lstrip() | w.rstrip() | w|length | s.strip('Hd') | s|trim('Hd') | 'aXbXc'.split('X') | 'a b  c '.split() | 'a b  c '.split(' ')
'a,b,c'.split(',', 1) | 'a,b,c'.rsplit(',', 1) | 'a,b,c'.rsplit(',') | ' a b c '.rsplit(None, 1) | 'a-b-c'.partition('-') | 'a-b-c'.rpartition('-') | 'abc'.partition('-')
lines.splitlines() | lines.splitlines(true) | lines|indent | lines|indent(2, true) | lines|indent(2, blank=true) | lines|indent('> ', true)
s.startswith('Hello') | s.startswith(('x','He')) | s.endswith('d') | s.endswith('x') | s.startswith('W', 7) | s.find('o') | s.find('o', 5) | s.rfind('o') | s.find('zz') | s.index('W') | s.count('l') | s.count('')
s.removeprefix('Hello') | s.removesuffix('World') | 'abc'.center(8,'*') ~ '|' | 'abc'.ljust(6) ~ '|' | 'abc'.rjust(6,'0') | '-42'.zfill(6) | 'abc'|center(8) ~ '|' | 'ab'|center(7) ~ '|'
'{} and {}'.format(1,'x') | '{0}{1}{0}'.format('a','b') | '{x}!'.format(x=3) | '%s is %d' % ('a', 5) | '%05.2f|%-5s|%5s' % (3.14159, 'ab', 'cd') | '%x %X %o %%' % (255,255,8) | '%s' % l | '%r' % s | 'a%sb'|format(1)
s.isupper() | 'ABC'.isupper() | 'abc1'.islower() | 'abc'.isalpha() | 'ab1'.isalnum() | '123'.isdigit() | '12a'.isdigit() | ' '.isspace() | ''.isspace() | '²'.isdigit() | '½'.isnumeric() | 'é'.isascii()
','.join(['a','b']) | ', '.join(names) | 'x'.join('abc') | s.casefold() | 'ab' * 3 | 3 * 'ab' | 'ab' * 0 | 'ab' * -1 | s + '!' | s ~ 1 ~ none ~ true ~ 1.5 | s ~ missing ~ '.'
s[0] | s[-1] | s[100] | s[1:4] | s[:-1] | s[-3:] | s[::2] | s[::-1] | s[10:2:-2] | s[5:2] | s[-100:3] | s[3:100] | l[::-1] | l[1:] | l[:2] | l[-2:] | l[5:] | l[2:0:-1] | l[0] | l[-1] | l[9]
i + 1 | i - 10 | i * 3 | i / 2 | i // 2 | i % 3 | neg // 2 | neg % 5 | i ** 2 | 2 ** -1 | 2 ** 0.5 | -i | +i | -f | f + 1 | f * 2 | f // 1 | f % 1 | 7.5 // 2 | -7.5 % 2 | 1 / 3 | 10 / 5 | true + 1 | 1 - 2 - 3 | 2 ** 3 ** 2 | -2 ** 2 | 1 + 2 * 3 | (1 + 2) * 3
i == 7 | i == 7.0 | i != 7 | i < 8 | i <= 7 | i > 7 | i >= 7 | 1 < 2 < 3 | 1 < 3 < 2 | 'a' < 'b' | 'a' == 1 | true == 1 | none == none | none == false | [1,2] == [1,2] | (1,2) == [1,2] | {'a':1} == {'a':1.0} | [1,2] < [1,3] | missing == missing | missing == none
'lo' in s | 'x' in s | 'x' not in s | 3 in l | 9 in l | 'b' in d | 'zz' in d | 1 in [1.0] | 'a' in 'abc' | '' in s | not yes | not no | not not s | yes and s | no and s | no or s | empty or 'default' | nothing or empty or 0
'a' if yes else 'b' | 'a' if no else 'b' | 'a' if no | ('a' if no) is defined | 'x' if i > 5 else 'y' if i > 3 else 'z' | (yes and no) or yes | yes and (no or yes) | not yes or yes | yes if yes and not no
d | d.b | d['b'] | d.a | d.k.n | d['k']['n'] | d.items is string | d['items'] | d.items()|list | d.keys()|list | d.values()|list | d.get('b') | d.get('zz') | d.get('zz', 'dflt') | d.zz is defined | d.zz | d['zz'] | d|length | d|list | d|items|list | d|dictsort | d.k|tojson | d|tojson | d|string | d.copy() == d
l | l|length | l|sort | l|sort(reverse=true) | l|first | l|last | l|sum | l|max | l|min | l|join | l|join('-') | l|reverse|list | l + [4] | l|list | l|string | l|tojson | []|first is defined | []|last | [] | () | (1,) | (1,2) | {} | [[]] | [1,'a',none,true,1.5,{'x':(1,)}]
names|sort | names|sort(case_sensitive=true) | names|unique|list | names|unique(case_sensitive=true)|list | names|map('upper')|list | names|map('replace','a','_')|join(',') | names|select('in',['beta'])|list | names|reject('equalto','beta')|list | names|map('length')|sum | names|max | names|min | names|batch(3)|list | names|batch(3,'-')|list
people|map(attribute='name')|join(', ') | people|map(attribute='extra.z')|list | people|map(attribute='tags.0', default='none')|list | people|map(attribute='extra.z', default=0)|list | people|selectattr('age','equalto',31)|map(attribute='name')|list | people|selectattr('tags')|list|length | people|rejectattr('role','eq','user')|list|tojson | people|selectattr('extra','defined')|list|length | people|selectattr('age','gt',30)|list|length | people|rejectattr('extra')|map(attribute='name')|list | people|sum(attribute='age') | people|map(attribute='age')|unique|list | people|sort(attribute='name')|map(attribute='name')|list | people|sort(attribute='age,name')|map(attribute='name')|list | people|join(', ', attribute='name') | people|max(attribute='age')|tojson | people|first|attr('name') is defined
schema|tojson | schema|tojson(indent=2) | schema|tojson(indent=4) | schema|tojson(ensure_ascii=true) | schema|tojson(sort_keys=true) | schema|tojson(separators=(',',':')) | schema|tojson(indent='\\t') | []|tojson(indent=2) | {'a':[],'b':{}}|tojson(indent=1) | u|tojson | '\\u0001\\x7f\\n\\t"\\\\/'|tojson | {1:2,none:3,true:4,1.5:5}|tojson | (1,2)|tojson | none|tojson | 1.0|tojson | numbers|tojson
numbers | numbers|join(' ') | 1e100 | 1.5e3 | 0x1F | 0b101 | 0o17 | 1_000 | 3.0 | 1.10 | '3'|int | '3.9'|int | 'x'|int | 'x'|int(5) | '0x1f'|int(0,16) | ' 42 '|int | '1e3'|float | 'x'|float | none|int | 3.99|int | -3.99|int | true|int | '12'|float | 2.5|round | 3.5|round | 2.345|round(2) | 2.7|round(0,'floor') | 2.1|round(method='ceil') | 7|round | 1234|round(-2) | -5|abs | -5.5|abs
missing | missing is defined | missing|default('x') | missing|d('x') | missing.a is defined | empty|default('x') | empty|default('x', true) | nothing|default('x') | nothing|default('x', boolean=true) | missing|length | missing|list | missing|string | missing|upper | missing|join | [missing]|join('-') | missing in l | l in [missing] | missing|trim | missing is none | missing is string | missing is iterable | missing is sequence | missing is mapping | missing ~ 'a'
yes is boolean | i is boolean | i is number | yes is number | i is integer | yes is integer | f is float | f is integer | s is string | l is sequence | d is sequence | s is sequence | i is sequence | l is iterable | s is iterable | i is iterable | d is mapping | l is mapping | nothing is none | nothing is not none | yes is true | i is true | no is false | nothing is false | i is odd | i is even | i is divisibleby 7 | i is divisibleby(2) | s is lower | 'abc' is lower | 'ABC' is upper | i is eq 7 | i is equalto(7) | i is ne 7 | i is lt 8 | i is gt(8) | i is ge 7 | i is le 6 | 3 is in l | 3 is in([1]) | s is callable | range is callable | d.items is callable | nothing is sameas none | yes is sameas true | 1 is sameas true | 'upper' is filter | 'odd' is test | not i is odd | i is not odd and yes
range(5)|list | range(2,5)|list | range(5,0,-2)|list | range(0) |list | range(3)|join(',') | dict(a=1,b=2) | dict(a=1)|tojson | dict([('x',1)]) | namespace(a=1).a | nothing|selectattr('x')|list | nothing|map('upper')|list | 0|select|list | 'abc'|first | 'abc'|last | 'abc'|list | d|first | 'a b'|wordcount | '<a & "b">'|escape | '<a>'|e | '<a>'|safe | 'x'|string|length | l|map('string')|join | [1,[2,[3]]]|tojson | 'a' 'b' "c" | 'it\\'s' | "q\\"q" | 'tab\\tnl\\nx' | '\\u00e9\\x41' | '\\q' | 'a\\\\nb' | 1 , 2 | (1 , 2)[0]
raise_exception('boom ' ~ i) | missing.x | missing['x'] | missing + 1 | missing() | s() | nothing.x | nothing.x.y | nothing['x'] is defined | i + 's' | s + 1 | l + 1 | s|nofilter | s is notest | 1 / 0 | 1 // 0 | 1 % 0 | 1 < 's' | 's' in 5 | 5 in 's' | for | l.append(4) | d.update({}) | d.pop('b') | 'a'.index('z') | 'a'.nomethod() | range(200000) | l|length(1) | s.split('') | 5|length | none|length | nothing|list | missing|tojson | 5|join | l|first|upper | {[]: 1} | d|dictsort|first|first | d.items()[0] is defined | (l|map('string'))[0] is defined | l|map('string')|length | s[1:'a'] | nothing[1:] | ns.x | '%d' % 'x' | '%s %s' % 'x' | '%s' % ('a','b') | strftime_now('%d %b %Y') | strftime_now('%Y-%m-%d %H:%M:%S %A %B %j %p %I %y') | strftime_now('%-d/%-m')
"""

STATEMENTS = [
    "{% for x in l %}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in l %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}|{% for x in l %}x{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% else %}none{% endfor %}",
    "{% for x in l if x > 10 %}{{ x }}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }};{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }};{% endfor %}",
    "{% for k in d %}{{ k }};{% endfor %}",
    "{% for c in s %}{{ c }}.{% endfor %}",
    "{% for (a, b) in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for x in missing %}x{% else %}empty{% endfor %}",
    "{% for x in nothing %}x{% endfor %}",
    "{% for x in i %}x{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in range(10) %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in range(3) %}{% for y in range(3) %}{% if y > x %}{% break %}{% endif %}{{ x }}{{ y }}{{ loop.depth }} {% endfor %}{{ loop.index }}|{% endfor %}",
    "{% for x in [1, 2] recursive %}{{ x }}{% endfor %}" if False else "{{ 1 }}",
    "{% set x = 1 %}{% for y in l %}{% set x = y %}{{ x }}{% endfor %}{{ x }}",
    "{% for y in l %}{{ z is defined }}{% set z = y %}{{ z }}{% endfor %}{{ z is defined }}",
    "{% set ns = namespace(x=0, found=false) %}{% for y in l %}{% set ns.x = ns.x + y %}{% if y == 2 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.x }}{{ ns.found }}",
    "{% set ns = namespace() %}{% set ns.a = 'b' %}{{ ns.a }}{{ ns.zz is defined }}",
    "{% set d.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set t = 1, 2 %}{{ t }}",
    "{% if yes %}{% set x = 1 %}{% endif %}{{ x }}",
    "{% set x %}block {{ i }}{% endset %}[{{ x }}]",
    "{% set x | upper | trim %}  block {{ i }} {% endset %}[{{ x }}]",
    "{% set x %}{% set inner = 5 %}{{ inner }}{% endset %}{{ x }}{{ inner is defined }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}",
    "{% filter replace('a', 'b') | trim %} aaa {% endfilter %}",
    "{% with a = 1, b = i %}{{ a }}{{ b }}{% set c = 2 %}{% endwith %}{{ a is defined }}{{ c is defined }}",
    "{% macro m(a, b=2, c=none) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(b=5, a=6) }}|{{ m(1, c='x') }}|{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * (fact(n - 1) | int) }}{% endif %}{% endmacro %}{{ fact(6) }}",
    "{% macro walk(node, level=0) %}{{ '  ' * level }}{% for k, v in node.items() %}{{ k }}:{% if v is mapping %}{{ walk(v, level + 1) }}{% else %}{{ v }}{% endif %};{% endfor %}{% endmacro %}{{ walk(schema) }}",
    "{% macro outer() %}{{ later }}{% endmacro %}{% set later = 'set later' %}{{ outer() }}",
    "{% macro m() %}{{ caller() }}|{{ caller() }}{% endmacro %}{% call m() %}body {{ i }}{% endcall %}",
    "{% macro m(l) %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(y) m(l) %}<{{ y }}>{% endcall %}",
    "{% macro m() %}{% set q = 1 %}{{ q }}{% endmacro %}{{ m() }}{{ q is defined }}{{ m is callable }}{{ m().upper() }}",
    "{% macro m() %}x{% endmacro %}{% set a = m() + m() %}{{ a }}{{ a|length }}",
    "{% if no %}a{% elif i > 5 %}b{% elif i > 6 %}c{% else %}d{% endif %}",
    "{% if l %}t{% endif %}{% if [] %}t{% endif %}{% if {} %}t{% endif %}{% if '' %}t{% endif %}{% if 0 %}t{% endif %}{% if 0.0 %}t{% endif %}{% if l|select('gt', 100) %}generator{% endif %}",
    "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() }}{{ c.next() }}",
    "{% set g = l|map('string') %}{{ g|join }}-{{ g|join }}",
    "{% generation %}text {{ i }}{% endgeneration %}",
    "{% for x in l %}{% generation %}{{ x }}{% endgeneration %}{% endfor %}",
    "{% raw %}{{ not }} {% if %}{% endraw %}x",
    "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "{# comment #}x{# multi\nline #}\ny",
    "a\n{# comment #}\nb",
    "  {# indented #}\n  b",
    "{% if yes %}\nline\n{% endif %}\nend",
    "  {% if yes %}\n  line\n  {% endif %}\n  end\n",
    "\t{% if yes %}x{% endif %}\n",
    "x  {% if yes %}y{% endif %}  z",
    "{%- if yes -%}\n  a  \n{%- endif -%}\n b",
    "a  \n {{- s -}} \n b",
    "a {{+ i }}" if False else "a {{ i }}",
    "  {%+ if yes %}a{%+ endif %}",
    "{% if yes +%}\na{% endif +%}\nb",
    "a\n\n{% if yes %}\n\nb\n\n{% endif %}\n\nc\n\n",
    "{{ s }}\n{{ i }}\n",
    "{{ s }}\n\n",
    "line\r\nnext\rthird\n{% if yes %}\r\nx{% endif %}",
    "{{ {'a': {'b': 1}}['a']['b'] }}",
    "{{ {'a': {'b': 1}} }}",
    "{{ [[1], [2]][1][0] }}",
    "{{ 'a}}b' }}{{ '%}' }}",
    "{{ \"x\" ~ '{{ y }}' }}",
    "{% for x in l -%}\n  {{ x }},\n{%- endfor %}\n.",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\n.",
    "{%- set x = 5 -%}\n\n  {{- x }}",
    "{{ (l|sort)[0] }}{{ (people|first).name }}{{ people[0].tags|join }}{{ people[-1]['extra']['z'] }}",
    "{{ s.lower().split(', ')[1].upper()[0:3] }}",
    "{{ messages|length }}{{ messages[0].role }}{{ messages[0]['content'][:2] }}{{ add_generation_prompt }}{{ tools }}",
    "{{ loop is defined }}{{ self is defined }}" if False else "{{ loop is defined }}",
    "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% set l2 = l + [9] %}{% set l2 = l2 + [i] %}{{ l2 }}",
    "{% set x = {} %}{% set x = dict(x, **{'a': 1}) %}{{ x }}" if False else "{{ dict({'q': 1}, a=2) }}",
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}{{ loop_messages|length }}",
    "{%- for m in messages %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant') }}{%- endif %}{%- endfor %}ok",
    "{% for m in messages[::-1] %}{{ m.role }}{{ loop.index0 }};{% endfor %}",
    "{% set ns = namespace(i=0) %}{% for m in messages %}{% set index = (messages|length - 1) - loop.index0 %}{{ index }}{{ messages[index].role[0] }}{% endfor %}",
    "{% set content = messages[-1].content %}{% if '</think>' in content %}{{ content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}{% endif %}|",
    "{{ 1 if true else 2 if false else 3 }}",
    "{{ not false and not (false or false) }}",
    "{{ -1 + 2 }}{{ 2 - -1 }}{{ - 1 }}",
    "{{ 'a' ~ 1 + 2 ~ 'b' }}",
    "{{ 1 ~ 2 == '12' }}",
    "{{ l|length > 2 and 'x' or 'y' }}",
    "{{ l|length + 1 }}{{ (l|length) * 2 }}{{ -l|length }}",
    "{{ 'x' is string and 1 is not string }}",
    "{{ missing is not defined or missing is none }}",
    "{{ i if i is defined and i is not none else 'n' }}",
    "{% macro m(a, b='x', c='y') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*l) }}{{ m(1, *[2, 3]) }}{{ m(1, **{'c': 2}) }}{{ m(*[1], c=3) }}{{ m(*[1], **{'b': 4}) }}{{ [m, m][1](*('q',)) }}",
    "{{ range(*[2, 5])|list }}{{ dict(**{'a': 1}) }}",
    "{{ range(*i) }}",
    "{{ dict(**l) }}",
    "{{ range(*l, *l) }}",
    "{{ dict(**d, **d) }}",
    "{{ dict(**d, 1) }}",
    "{% unknown %}",
    "{% if %}x{% endif %}",
    "{% if yes %}x",
    "{% endif %}",
    "{{ }}",
    "{{ s",
    "{{ s }",
    "{% for x l %}{% endfor %}",
    "{{ s | }}",
    "{{ (1, }}",
    "{{ [1, 2 }}",
    "{{ 'abc }}",
    "{{ 1 + }}",
    "{% set = 1 %}",
    "{% set true = 1 %}",
    "{% macro %}{% endmacro %}",
    "{# never closed",
    "{% raw %} never closed",
    "{{ a b }}",
    "{{ $ }}",
    "{% break %}",
    "",
    "\n",
    "plain text { % not a tag } }} {",
    "{%- for message in messages -%}\n{{ '<|' + message['role'] + '|>' }}\n{{ message['content'] | trim + '</s>' }}\n{%- endfor -%}",
]

CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "Hi <|im_end|> there"}]},
    {"messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "2+2?"}], "add_generation_prompt": True},
    {
        "messages": [
            {"role": "user", "content": "q1"},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\na1"},
            {"role": "user", "content": [{"type": "text", "text": "part 1"}, {"type": "text", "text": "part 2"}]},
            {"role": "assistant", "content": "a2", "reasoning_content": "because"},
            {"role": "user", "content": "日本語 \"quoted\" \\ back\n\nslash"},
        ],
        "add_generation_prompt": True,
    },
    {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2.5], "x": None}}},
                    {"id": "c2", "type": "function", "function": {"name": "time", "arguments": "{\"tz\": \"UTC\"}"}},
                ],
            },
            {"role": "tool", "name": "get_weather", "tool_call_id": "c1", "content": "{\"t\": 3}"},
            {"role": "tool", "name": "time", "tool_call_id": "c2", "content": "noon"},
            {"role": "assistant", "content": "Cold."},
            {"role": "user", "content": "thanks"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "Weather <of> a city & \"more\"",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string", "description": "é"}, "days": {"type": "array", "items": {"type": "number"}}, "opt": {"type": "object", "properties": {"deep": {"type": "boolean", "default": True}}}},
                        "required": ["city"],
                    },
                },
            },
            {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}},
        ],
        "add_generation_prompt": True,
    },
    {"messages": [{"role": "user", "content": "no thinking"}], "add_generation_prompt": True, "variables": {"enable_thinking": False, "reasoning_effort": "high"}},
    {"messages": [{"role": "assistant", "content": "first"}, {"role": "assistant", "content": "second"}]},
    {"messages": []},
]
