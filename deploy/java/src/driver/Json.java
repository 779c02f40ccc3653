package driver;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.ArrayList;
import java.util.Map;

/**
 * Just enough JSON for the line protocol: objects, arrays, strings, whole numbers, true, false, null. Own code, because the
 * JSON library on the class path changes from one RocketMQ version to the next and this source compiles against them all.
 */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> readObject(String line) {
        Json json = new Json(line);
        Object value = json.value();
        json.spaces();
        if (!(value instanceof Map) || json.at != line.length()) {
            throw json.wrong("one object per line");
        }
        return (Map<String, Object>) value;
    }

    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    // === Reading ===

    private Object value() {
        spaces();
        switch (peek()) {
            case '{':
                return object();
            case '[':
                return array();
            case '"':
                return string();
            case 't':
                return word("true", true);
            case 'f':
                return word("false", false);
            case 'n':
                return word("null", null);
            default:
                return number();
        }
    }

    private Map<String, Object> object() {
        Map<String, Object> map = new LinkedHashMap<>();
        take('{');
        spaces();
        if (peek() == '}') {
            take('}');
            return map;
        }
        while (true) {
            spaces();
            String key = string();
            spaces();
            take(':');
            map.put(key, value());
            spaces();
            if (peek() == '}') {
                take('}');
                return map;
            }
            take(',');
        }
    }

    private List<Object> array() {
        List<Object> list = new ArrayList<>();
        take('[');
        spaces();
        if (peek() == ']') {
            take(']');
            return list;
        }
        while (true) {
            list.add(value());
            spaces();
            if (peek() == ']') {
                take(']');
                return list;
            }
            take(',');
        }
    }

    private String string() {
        StringBuilder out = new StringBuilder();
        take('"');
        while (true) {
            char c = next();
            if (c == '"') {
                return out.toString();
            }
            out.append(c == '\\' ? escape() : c);
        }
    }

    private char escape() {
        char c = next();
        switch (c) {
            case 'n':
                return '\n';
            case 'r':
                return '\r';
            case 't':
                return '\t';
            case 'b':
                return '\b';
            case 'f':
                return '\f';
            case 'u':
                at += 4;
                return (char) Integer.parseInt(text.substring(at - 4, at), 16);
            default:
                return c;
        }
    }

    private Long number() {
        int from = at;
        while (at < text.length() && "+-0123456789".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        if (from == at) {
            throw wrong("a value");
        }
        return Long.parseLong(text.substring(from, at));
    }

    private Object word(String word, Object value) {
        if (!text.startsWith(word, at)) {
            throw wrong(word);
        }
        at += word.length();
        return value;
    }

    private void spaces() {
        while (at < text.length() && Character.isWhitespace(text.charAt(at))) {
            at++;
        }
    }

    private char peek() {
        if (at >= text.length()) {
            throw wrong("more");
        }
        return text.charAt(at);
    }

    private char next() {
        char c = peek();
        at++;
        return c;
    }

    private void take(char wanted) {
        if (next() != wanted) {
            throw wrong("'" + wanted + "'");
        }
    }

    private IllegalArgumentException wrong(String wanted) {
        return new IllegalArgumentException("expected " + wanted + " at character " + at + " of " + text);
    }

    // === Writing ===

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map) {
            char separator = '{';
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(separator);
                string(String.valueOf(entry.getKey()), out);
                out.append(':');
                write(entry.getValue(), out);
                separator = ',';
            }
            out.append(separator == '{' ? "{}" : "}");
        } else if (value instanceof Iterable) {
            char separator = '[';
            for (Object each : (Iterable<?>) value) {
                out.append(separator);
                write(each, out);
                separator = ',';
            }
            out.append(separator == '[' ? "[]" : "]");
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else {
            string(value.toString(), out);
        }
    }

    private static void string(String text, StringBuilder out) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < 0x20 || c > 0x7e) {
                // A lone surrogate would make the line invalid for the reader.
                out.append(Character.isSurrogate(c) && !paired(text, i) ? "\\ufffd" : String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }

    private static boolean paired(String text, int i) {
        if (Character.isHighSurrogate(text.charAt(i))) {
            return i + 1 < text.length() && Character.isLowSurrogate(text.charAt(i + 1));
        }
        return i > 0 && Character.isHighSurrogate(text.charAt(i - 1));
    }
}
