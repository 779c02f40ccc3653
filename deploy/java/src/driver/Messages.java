package driver;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;

import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;

/** Messages from commands and messages as JSON: every field that a delayed message must keep. */
final class Messages {
    /** Longer bodies are told by length and digest only. */
    private static final int BODY_SHOWN_MAX = 1024;

    private Messages() {
    }

    static Message fromRequest(Request request) throws Exception {
        Message message = new Message(request.text("topic"), body(request));
        if (request.has("tags")) {
            message.setTags(request.text("tags"));
        }
        if (request.has("keys")) {
            message.setKeys(request.text("keys"));
        }
        if (request.has("flag")) {
            message.setFlag((int) request.number("flag"));
        }
        if (request.has("wait")) {
            message.setWaitStoreMsgOK(request.flag("wait", true));
        }
        if (request.has("delayLevel")) {
            message.setDelayTimeLevel((int) request.number("delayLevel"));
        }
        // Not putUserProperty: it refuses the names that the broker knows, and those are the point here.
        request.map("properties").forEach((name, value) ->
            MessageAccessor.putProperty(message, name, String.valueOf(value)));
        for (Map.Entry<String, Object> each : request.map("setters").entrySet()) {
            set(message, each.getKey(), (Long) each.getValue());
        }
        return message;
    }

    /** By name, since no single version has them all: setDelayTimeMs and its like came with 5.0. */
    static void set(Message message, String setter, long value) throws Exception {
        Message.class.getMethod(setter, long.class).invoke(message, value);
    }

    private static byte[] body(Request request) {
        if (!request.has("bodySize")) {
            return request.text("body", "").getBytes(StandardCharsets.UTF_8);
        }
        byte[] body = new byte[(int) request.number("bodySize")];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) ('a' + i % 26);
        }
        return body;
    }

    static Map<String, Object> describe(MessageExt message) throws Exception {
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("topic", message.getTopic());
        map.put("queueId", message.getQueueId());
        map.put("queueOffset", message.getQueueOffset());
        map.put("msgId", message.getMsgId());
        map.put("uniqKey", MessageClientIDSetter.getUniqID(message));
        map.put("offsetMsgId", message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : null);
        map.put("bornTimestamp", message.getBornTimestamp());
        map.put("storeTimestamp", message.getStoreTimestamp());
        map.put("reconsumeTimes", message.getReconsumeTimes());
        map.put("flag", message.getFlag());
        map.put("sysFlag", message.getSysFlag());
        describeBody(message.getBody(), map);
        map.put("properties", new TreeMap<>(message.getProperties()));
        return map;
    }

    static void describeBody(byte[] body, Map<String, Object> map) throws Exception {
        map.put("bodyLength", body.length);
        map.put("bodySha256", hex(MessageDigest.getInstance("SHA-256").digest(body)));
        map.put("body", body.length <= BODY_SHOWN_MAX ? utf8(body) : null);
    }

    /** What the client library's own decoder makes of an offsetMsgId: it must never choke on one of ours. */
    static Map<String, Object> decodeOffsetId(String id) {
        try {
            MessageId decoded = MessageDecoder.decodeMessageId(id);
            Map<String, Object> map = new LinkedHashMap<>();
            map.put("address", decoded.getAddress().toString().replaceFirst("^/", ""));
            map.put("offset", decoded.getOffset());
            return map;
        } catch (Exception failure) {
            return Driver.failed(failure);
        }
    }

    private static String utf8(byte[] body) {
        try {
            return StandardCharsets.UTF_8.newDecoder().onMalformedInput(CodingErrorAction.REPORT)
                .decode(ByteBuffer.wrap(body)).toString();
        } catch (CharacterCodingException notText) {
            return null;
        }
    }

    private static String hex(byte[] bytes) {
        StringBuilder out = new StringBuilder();
        for (byte b : bytes) {
            out.append(String.format("%02x", b));
        }
        return out.toString();
    }
}
