package driver;

import java.util.Collections;
import java.util.Map;

/** One command as it came: typed access to its fields, with the field named when it is missing. */
final class Request {
    private final Map<String, Object> fields;

    Request(Map<String, Object> fields) {
        this.fields = fields;
    }

    boolean has(String name) {
        return fields.get(name) != null;
    }

    String text(String name) {
        return String.valueOf(present(name));
    }

    String text(String name, String otherwise) {
        return has(name) ? text(name) : otherwise;
    }

    long number(String name) {
        return (Long) present(name);
    }

    long number(String name, long otherwise) {
        return has(name) ? number(name) : otherwise;
    }

    boolean flag(String name, boolean otherwise) {
        return has(name) ? (Boolean) present(name) : otherwise;
    }

    @SuppressWarnings("unchecked")
    Map<String, Object> map(String name) {
        return has(name) ? (Map<String, Object>) present(name) : Collections.emptyMap();
    }

    private Object present(String name) {
        Object value = fields.get(name);
        if (value == null) {
            throw new IllegalArgumentException("the command lacks '" + name + "': " + Json.write(fields));
        }
        return value;
    }
}
